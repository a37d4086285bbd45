#!/bin/sh
# what: the kernel puts slow nodes into a lower memory tier, from the machine's own figures
# machines: two-socket-optane spr-cxl xeonmax-9480
# short: yes

cat /sys/devices/virtual/memory_tiering/memory_tier*/nodelist
# above FAST SLOW
above() {
    fast=$(tier_of "$1")
    slow=$(tier_of "$2")
    if [ -n "$fast" ] && [ -n "$slow" ] && [ "$fast" -lt "$slow" ]; then
        ok "node $1 is in a faster tier than node $2"
    else
        not_ok "node $1 is in a faster tier than node $2" "tiers '$fast' and '$slow'"
    fi
}
case $LAB_MACHINE in
two-socket-optane)
    above 0 2
    above 0 3
    above 1 2
    equal "both sockets' DRAM is one tier" "$(tier_of 0)" "$(tier_of 1)"
    equal "both sockets have CPUs" "0 1" "$(cat /sys/devices/system/node/has_cpu | tr ',-' '  ')"
    ;;
spr-cxl)
    above 0 1
    equal "the CXL node's idle latency, ns" 216 \
        "$(cat /sys/devices/system/node/node1/access0/initiators/read_latency)"
    ;;
xeonmax-9480)
    above 1 0
    ;;
esac
equal "NUMA balancing is off until it is requested" 0 "$(cat /proc/sys/kernel/numa_balancing)"
