#!/bin/sh
# what: the independent check sees what numactl did, and numa_maps agrees
# machines: two-socket-optane
# programs: hotset residency
# short: yes

numactl --membind=2 hotset 4 1 1024 60 > log &
program=$!
wait_for 10 grep -q ready log || not_ok "the program starts" "$(cat log)"
pid=$(pidof hotset)
set -- $(grep ' hot$' log)
residency "$pid" "$3" "$4" > seen
equal "all OS pages of the hot object are on node 2" "node 2 257 absent 0" "$(echo $(cat seen))"
equal "numa_maps says so too" 0 \
    "$(awk '/anon=/ && / N0=/ { n++ } END { print n + 0 }' "/proc/$pid/numa_maps")"
kill "$pid"
wait "$program"
equal "the program ends well" 0 $?
contains "and its data are intact" intact log
