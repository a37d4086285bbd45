#!/bin/sh
# what: a quarter of the memory fast wins most of what all of it fast would win, by default settings
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold json
# timed: yes
# limit: 1500

# 64 MiB, of which two objects of 4 MiB get 90% of the accesses. They are in the slow node if they
# were allocated after the budget was used up, and no hint says which objects they are.
objects="objects=16 kib=4096 hot=2"
# picoseconds an access: `hotcold: right, N accesses, X ns each`
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }

numactl --membind=0 hotcold $objects accesses=3000000 > fast
numactl --membind=1 hotcold $objects accesses=3000000 > slow
tiercel run --fast 25% --json --output summary -- hotcold $objects accesses=2000000 seconds=8 > ours
equal "the program ends well" 0 $?
all_fast=$(picoseconds fast)
all_slow=$(picoseconds slow)
ours=$(picoseconds ours)
show summary
at_least "ps an access that all-fast wins" 5000 $((all_slow - all_fast))
at_least "percent of it won ($all_fast all fast, $all_slow all slow, $ours ps an access)" 60 \
    $((100 * (all_slow - ours) / (all_slow - all_fast)))
