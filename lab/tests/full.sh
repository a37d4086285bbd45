#!/bin/sh
# what: a full target node is reported, and costs the program nothing
# machines: two-socket-optane
# programs: tiercel libtiercel.so hotset hog json
# limit: 90

settings > settings
hog 0 40960 > hog0.log &
hog 1 20480 > hog1.log &
wait_for 30 grep -q full hog0.log || not_ok "node 0 fills up" "$(cat hog0.log)"
wait_for 30 grep -q full hog1.log || not_ok "node 1 fills up" "$(cat hog1.log)"
numactl --membind=2 tiercel run --fast 90% --config settings --json --output summary \
    -- hotset 8 4 16384 15 > log 2> errors
equal "the program ends well" 0 $?
contains "its data are intact" intact log
show errors
# The kernel refuses the move, or the policy sees beforehand that the node is full.
contains "the summary names the reason" '"no-memory"\|"no-room"' summary
killall -KILL hog
