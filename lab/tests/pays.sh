#!/bin/sh
# what: a timed guest in short: fast memory pays, and what the samples find hot is brought there
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# timed: yes
# short: yes
# limit: 100

# 16 MiB, of which one of 16 objects gets 90% of the accesses.
objects="objects=16 kib=1024 hot=1"
# picoseconds an access: `hotcold: right, N accesses, X ns each`
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }

numactl --membind=0 hotcold $objects accesses=300k > fast
numactl --membind=1 hotcold $objects accesses=300k > slow
numactl --membind=1 tiercel run --fast 25% --tick 10ms --output summary \
    -- hotcold $objects accesses=1m > ours
equal "the program is right" 0 $?
show summary
at_least "picoseconds an access that fast memory wins" 3000 $(($(picoseconds slow) - $(picoseconds fast)))
