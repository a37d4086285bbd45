#!/bin/sh
# what: in a timed guest, memory in use has its accessed bits set again soon after they were cleared
# machines: spr-cxl
# programs: twin
# timed: yes
# limit: 120

huge=/sys/kernel/mm/transparent_hugepage/enabled
before=$(sed "s/.*\[\(.*\)\].*/\1/" $huge)
echo never > $huge

# referenced: KiB of the program's memory with accessed bits
referenced() {
    awk '/^[0-9a-f]+-/ { ours = index($1, "600000000000-") == 1 }
        ours && /^Referenced:/ { print $2 }' "/proc/$program/smaps"
}

# 256 OS pages, which stay in any translation buffer, and 8192, four times what a processor's holds.
for mib in 1 32; do
    twin $mib 100000000 1 read > log &
    program=$!
    wait_for 10 grep -q ready log || not_ok "the program starts" "it did not"
    kill -CONT "$program"
    usleep 20000
    echo 1 > "/proc/$program/clear_refs"
    usleep 20000
    at_least "KiB of $mib MiB referenced 20 ms later" $((mib * 900)) "$(referenced)"
    kill -STOP "$program"
    usleep 5000
    echo 1 > "/proc/$program/clear_refs"
    usleep 20000
    equal "and none once it stands still" 0 "$(referenced)"
    kill -KILL "$program"
    wait "$program"
done
echo "$before" > $huge
