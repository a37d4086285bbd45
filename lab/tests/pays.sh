#!/bin/sh
# what: in short: hot memory moves to the fast node, which pays in modelled time
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# timed: yes
# short: yes
# limit: 200

# 64 MiB, since smaller programs are observed only from 250 ms on. Two objects of 4 MiB get 90% of
# the accesses; the second is allocated when the budget is used up. There are sixty ticks, so that
# moves which the gate reverted on little evidence are tried again.
objects="objects=16 kib=4096 hot=2"
# picoseconds an access: `hotcold: right, N accesses, X ns each`
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }

numactl --membind=0 hotcold $objects accesses=200k > fast
numactl --membind=1 hotcold $objects accesses=200k > slow
echo 'sampling = { period = 512, cpu_budget = 0.05 }' > settings
tiercel run --fast 25% --config settings --tick 10ms --output summary \
    -- hotcold $objects accesses=20m > ours
equal "the program is right" 0 $?
cat fast slow ours
show summary
at_least "picoseconds an access that fast memory wins" 10000 \
    $(($(picoseconds slow) - $(picoseconds fast)))
at_most "picoseconds an access under Tiercel, moves included" "$(picoseconds slow)" \
    "$(picoseconds ours)"
contains "no sample is lost" "samples .* by emulator: .* 0 lost" summary
contains "both hot objects are in fast memory" ' 8MiB *2 .* node0  *hotcold: make_hot' summary
