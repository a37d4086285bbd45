#!/bin/sh
# what: tiercel finds the machine's real tiers
# machines: two-socket-optane spr-cxl xeonmax-9480
# programs: tiercel json
# short: yes

tiercel topo --json > topo || not_ok "tiercel topo works" "status $?"
rank() { json "tiers.$1.nodes" < topo; }
case $LAB_MACHINE in
two-socket-optane)
    equal "the best tier is both sockets' DRAM" "[0,1]" "$(rank 0)"
    equal "the next is both sockets' Optane" "[2,3]" "$(rank 1)"
    equal "from socket 1, its own Optane comes before the other's" "[3]" \
        "$(json seen_from.1.tiers.2.nodes < topo)"
    ;;
spr-cxl)
    equal "the best tier is DDR" "[0]" "$(rank 0)"
    equal "the next is CXL" "[1]" "$(rank 1)"
    equal "the CXL node has no CPUs" '""' "$(json nodes.1.cpus < topo)"
    ;;
xeonmax-9480)
    equal "both memories have a tier" "2" "$(json tiers.# < topo)"
    equal "bandwidth is asked of HBM" "[1]" "$(json spaces.0.nodes < topo)"
    ;;
esac
