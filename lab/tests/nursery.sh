#!/bin/sh
# what: an array that dies before a move could help it gets room in fast memory for its next births
# machines: spr-cxl
# programs: tiercel libtiercel.so reborn json
# timed: yes
# limit: 600

# 24 MiB are there first and fill the 12 MiB of fast memory. 8 MiB, more than the caches have, are
# born in each round and accessed at random.
echo 'sampling = { period = 512, cpu_budget = 0.05 }' > settings
tiercel run --no-learn --fast 12MiB --config settings --json --output summary \
    -- reborn 24 8 400 > ours
equal "the program is right" 0 $?
cat ours
contains "what made room keeps its data" intact ours
at_most "MiB that sites keep" 10 $(($(json summary.shadows.0.nursery_bytes < summary) >> 20))
promoted=$(json summary.moves.moved_bytes.promote < summary 2> none || echo 0)
at_most "MiB promoted: it is born fast, and not moved" 8 $((promoted >> 20))
first=$(awk '/^nanoseconds/ { print $2 }' ours)
last=$(awk '/^nanoseconds/ { print $3 }' ours)
at_most "ns an access at the end, of $first at first" $((first * 8 / 10)) "$last"
