#!/bin/sh
# what: debug
# machines: two-socket-optane
# programs: tiercel libtiercel.so hotset residency json
# limit: 60
( timeout 20 hotset 4 1 1024 3; echo "plain $?"
LD_PRELOAD=/usr/lib/tiercel/libtiercel.so timeout -s KILL 20 hotset 4 1 1024 3; echo "preload $?" 
timeout -s KILL 20 tiercel run --fast 25% --tick 500ms -- hotset 4 1 1024 3; echo "run $?" ) > log 2>&1
show log
not_ok done x
