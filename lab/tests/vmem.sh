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

vmem_checker 1 16 1 hold > held 2> errors &
checker=$!
wait_for 60 grep -q '^held' held || not_ok "it holds still" "$(cat held errors)"
set -- $(grep '^held' held)
residency "$(pidof vmem_checker)" "$2" "$3" > where
at_least "what migrated lies on node 1, by the kernel's account" "$(($3 / 4096 * 99 / 100))" \
    "$(awk '$1 == "node" && $2 == 1 { print $3 }' where)"
kill "$checker"
wait "$checker"
equal "and it ends when it is told to" 143 $?
