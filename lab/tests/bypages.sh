#!/bin/sh
# what: run --by pages tiers a program with nothing loaded into it; why explains its OS pages
# machines: two-socket-optane
# programs: tiercel placed filled residency
# limit: 300

# 4 MiB hot on Optane (node 2), accessed from socket 0, and 8 MiB cold in its DRAM (node 0). What
# that leaves of node 0 is filled before the first access: the kernel by itself moves nothing to a
# full node.
reach_knobs
found=$(knobs)
echo '[pages]
window_ms = 200' > settings

kernels=$(by_kernel)
PLACED_GO=go tiercel run --by pages --mode opmx --config settings --output report -- \
    placed 0 8192 0 4096 2 > log 2>&1 &
tiercel=$!
wait_for 60 grep -q ready log || not_ok "the program starts" "$(cat log)"
filled 0 0 > filled.log 2>&1 &
filler=$!
wait_for 60 grep -q full filled.log || not_ok "node 0 fills up" "$(cat filled.log)"
touch go
program=$(pidof placed)
set -- $(awk '$1 == "hot" { print $2, $3 }' log)
in_dram() { residency "$program" "$1" "$2" | awk '$1 == "node" && $2 == 0 { print $3 }'; }
is_done() { [ "$(($(in_dram "$@") + 0))" -ge 768 ]; }
wait_for 180 is_done "$@"
at_least "hot OS pages of 1024 that are in DRAM" 768 "$(in_dram "$@")"
at_most "OS pages that the kernel itself moved" 256 $(($(by_kernel) - kernels))
# The kernel may have moved the first ones: any that Tiercel moved will do.
is_explained() {
    for nth in 1000 800 600 400 200; do
        hot=$(printf '0x%x' $((start + nth * 4096)))
        tiercel why "$hot" > why 2>&1 && grep -q "reached node0" why && return
    done
    return 1
}
start=$1
wait_for 100 is_explained
contains "why says of what process" "$hot of process $program " why
contains "on which node" "is on node0, tier 1 of 4 for node0" why
contains "how often it was accessed" "whose CPUs accessed it in [1-8] of [1-8] windows" why
contains "and what was decided last" "s ago it was to be promoted from node2 to node0, saving" why
tiercel why 0x1000 > output 2>&1 && not_ok "an address that is not mapped" "it was explained"
contains "an address that is not mapped is refused" "in no memory that is tiered here" output
tiercel status > output 2>&1 && not_ok "status finds no daemon" "it did"
contains "status does not take it for a daemon" "no daemon or run was found" output
equal "nothing of Tiercel is in the program" 0 "$(grep -c tiercel /proc/"$program"/maps)"
kill "$program"
wait "$tiercel"
equal "run ends as the program does" 0 $?
show report
contains "no byte is lost" intact log
at_least "MiB that the report says were moved up" 2 \
    "$(awk '$2 == "moves" { print int($4) }' report)"
equal "the knobs are as they were found" "$found" "$(knobs)"
kill -KILL "$filler"

tiercel run --by pages --quiet -- sh -c 'exit 7'
equal "the program's status is run's" 7 $?
tiercel run --by pages --mode opmx --tick 1s -- touch started > output 2>&1
equal "an option of objects is refused" 125 $?
contains "with its name" "tick is of objects" output
[ -e started ] && not_ok "before the program starts" "it started"
tiercel why "$hot" > output 2>&1 && not_ok "without tiering there is no answer" "there is one"
contains "without tiering there is no answer" "nothing is tiered by OS page now" output
