#!/bin/sh
# what: what Tiercel takes of the fast node itself, by the kernel's counts
# machines: spr-cxl
# programs: tiercel libtiercel.so hotset residency
# limit: 120

# Memory of node 0 that the kernel cannot drop, KiB: what processes wrote, shared memory, page
# tables and stacks of the kernel.
taken() {
    awk '/ (AnonPages|Shmem|PageTables|KernelStack):/ { print $3, $4 }' \
        /sys/devices/system/node/node0/meminfo
}
sum() {
    awk '{ sum += $2 } END { print sum }'
}
# start LOG COMMAND...: eight objects of 4 MiB, all touched
start() {
    log=$1
    shift
    "$@" > "$log" 2>&1 &
    pid=$!
    wait_for 30 grep -q ready "$log" || not_ok "$log starts" "$(cat "$log")"
    usleep 1500000
}
finish() {
    killall hotset
    wait "$pid"
    contains "data of $1 are intact" intact "$1"
}
echo never > /sys/kernel/mm/transparent_hugepage/enabled
start plain.log hotset 8 2 4096 100
taken > plain; plain=$(sum < plain)
finish plain.log
start hosted.log tiercel run --output summary -- hotset 8 2 4096 100
taken > hosted; hosted=$(sum < hosted)
finish hosted.log
show summary
parts=$(paste plain hosted | awk '{ printf "%s %d ", $1, $4 - $2 }')
at_most "KiB of the fast node that Tiercel takes: $((hosted - plain)): $parts" 1024 \
    $((hosted - plain))
