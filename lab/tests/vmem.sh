#!/bin/sh
# what: vregions move between real nodes while threads write, and no write is lost
# machines: spr-cxl
# programs: libtiercel.so vmem_checker residency
# limit: 240

export LD_PRELOAD=/usr/lib/tiercel/libtiercel.so
vmem_checker 5 16 1 > log 2> errors
equal "with memory of its own: no write lost, no value torn" 0 $?
show errors
at_least "all three sorts of vpages" 3 "$(grep -c 'none lost' log)"
show log

# Its region has 40 MiB, and its shadows would have as much.
limited=/sys/fs/cgroup/limited
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir "$limited"
echo 64M > "$limited/memory.max"
sh -c 'echo $$ > "$0/cgroup.procs" && exec vmem_checker 3 40 1' "$limited" > log 2> errors
equal "in a control group that has no room for shadows: it is not killed, and no write is lost" 0 $?
show errors
at_least "all three sorts of vpages" 3 "$(grep -c 'none lost' log)"
show log
show "$limited/memory.events"
equal "no process was killed for memory" 0 \
    "$(awk '$1 == "oom_kill" { print $2 }' "$limited/memory.events")"
rmdir "$limited"

vmem_checker 1 16 1 hold > held 2> errors &
checker=$!
wait_for 60 grep -q '^held' held || not_ok "it holds still" "$(cat held errors)"
set -- $(grep '^held' held)
residency "$(pidof vmem_checker)" "$2" "$3" > where
at_least "what migrated lies on node 1, by the kernel's account" "$(($3 / 4096 * 99 / 100))" \
    "$(awk '$1 == "node" && $2 == 1 { print $3 }' where)"
kill "$checker"
wait "$checker"
equal "and it ends on request" 143 $?
