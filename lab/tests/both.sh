#!/bin/sh
# what: memory that no object names competes with objects where both are placed
# machines: spr-cxl
# programs: tiercel libtiercel.so raw hog
# timed: yes
# limit: 900

echo never > /sys/kernel/mm/transparent_hugepage/enabled
# Room for 10 MiB: the 16 MiB that are cold come first.
hog 0 12000 > hog.log &
wait_for 60 grep -q full hog.log || not_ok "node 0 fills up" "$(cat hog.log)"
echo '[objects]
extent = "1 MiB"' > settings
hot() { awk '$1 == "raw" && $2 == 0 { n = $3 } END { print n + 0 }' "$1"; }
# by WHAT: the program under tiercel run
by() {
    tiercel run --by "$1" --fast 8MiB --tick 50ms --config settings --verbose -- raw 16 4 60 \
        > "$1.out" 2> "$1.err"
    equal "by $1: the program ends well" 0 $?
    contains "by $1: no byte is lost" intact "$1.out"
    show "$1.out"
    show "$1.err"
}
by objects
at_most "by objects: of 1024 hot OS pages of no object, in fast memory" 100 "$(hot objects.out)"
by both
at_least "by both: of the same" 768 "$(hot both.out)"
contains "the summary names it" "memory of no allocation" both.err
killall -KILL hog
