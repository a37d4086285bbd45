#!/bin/sh
# what: hot and cold memory change places between full nodes, through few free bytes
# machines: two-socket-optane
# programs: tiercel placed filled residency
# limit: 180

# 40 MiB on Optane (node 2), written all the time from socket 0, for as much cold memory in its
# DRAM (node 0). Other programs hold the rest of the nodes.
reach_knobs
echo '[pages]
window_ms = 200' > settings

placed 0 40960 0 40960 2 > log &
program=$!
wait_for 60 grep -q ready log || not_ok "the program starts" "$(cat log)"
filled 0 0 1 2 > filled.log 2>&1 &
filler=$!
wait_for 60 grep -q full filled.log || not_ok "nodes 0, 1 and 2 fill up" "$(cat filled.log)"
# What Tiercel itself needs stays free where nothing is to go.
filled 65536 3 > filled3.log 2>&1 &
filler3=$!
wait_for 60 grep -q full filled3.log || not_ok "node 3 fills up" "$(cat filled3.log)"

# on KIND NODE: OS pages of that range there, by the independent check
on() {
    set -- $(awk -v kind="$1" -v node="$2" '$1 == kind { print $2, $3, node }' log)
    residency "$program" "$1" "$2" | awk -v node="$3" '$1 == "node" && $2 == node { print $3 }'
}
is_done() { [ "$(($(on hot 0) + 0))" -ge "$1" ]; }

tiercel attach --pid "$program" --mode opmx --config settings > report 2>&1 &
tiercel=$!
wait_for 60 is_done 9216
kill "$tiercel"
wait "$tiercel"
show report
at_least "hot OS pages of 10240 that are in DRAM" 9216 "$(on hot 0)"
at_least "cold ones that are where those were" 9216 "$(on cold 2)"
at_least "pairs that the report counts" 9216 \
    "$(awk '/^moves/ { for (i = 1; i < NF; i++) if ($(i + 1) == "pairs") print $i }' report)"
contains "no move is refused" " 0 refusals" report
kill "$program"
wait "$program"
equal "the program ends well" 0 $?
contains "no byte is lost" intact log
kill -KILL "$filler" "$filler3"
