#!/bin/sh
# what: a running program gains from tiercel attach, of which no trace stays
# machines: spr-cxl
# programs: tiercel hotcold hog asuser
# timed: yes
# limit: 900

reach_knobs
found=$(knobs)
echo never > /sys/kernel/mm/transparent_hugepage/enabled

# 64 MiB in objects of 1 MiB, of which 8 get 99% of the accesses. Fast memory has room for 24 MiB
# when the program starts: the objects that are allocated first are there, hot or not.
objects="objects=64 kib=1024 hot=8 share=99"
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }
echo '[pages]
window_ms = 200' > settings

numactl --membind=0 hotcold $objects accesses=1m > fast
hog 0 26000 > hog.log &
wait_for 60 grep -q full hog.log || not_ok "node 0 fills up" "$(cat hog.log)"
hotcold $objects accesses=1m > slow
all_fast=$(picoseconds fast)
all_slow=$(picoseconds slow)
at_least "ps an access that all-fast wins" 5000 $((all_slow - all_fast))

# gains SAMPLER PERCENT: of what all-fast wins, a program wins that is attached to as it runs
gains() {
    # Long enough: a process that started without balancing gets its first hints after a second of
    # its CPU time.
    hotcold $objects accesses=200m > ours &
    program=$!
    tiercel attach --pid "$program" --sampler "$1" --config settings > report 2> errors
    equal "$1: attach ends with the program" 0 $?
    wait "$program"
    equal "$1: the program ends well" 0 $?
    cat fast slow ours
    show report
    show errors
    ours=$(picoseconds ours)
    at_least "$1: percent won ($all_fast all fast, $all_slow as it starts, $ours ps an access)" \
        "$2" $((100 * (all_slow - ours) / (all_slow - all_fast)))
    contains "$1: no sample is lost" ", 0 lost," report
    equal "$1: the knobs are as they were found" "$found" "$(knobs)"
}
gains emulator 60
# Hints come with the kernel's passes, of which a program of seven seconds sees few: runs of this
# and of an earlier build had 10, 18 and 29.
gains hint 5
killall -KILL hog

# Detaching from a program that goes on.
hotcold $objects accesses=1000m > /dev/null &
program=$!
succeeds "attach ends after its time" tiercel attach --pid "$program" --for 300ms --config settings
kill -0 "$program"
equal "and the program goes on" 0 $?
equal "with the knobs as they were found" "$found" "$(knobs)"

# refused WHAT TEXT COMMAND...: before anything is changed
refused() {
    what=$1
    text=$2
    shift 2
    "$@" > output 2>&1 && not_ok "$what is refused" "it was not"
    contains "$what is refused with the reason" "$text" output
    equal "and changes nothing" "$found" "$(knobs)"
}
chmod 777 /tmp
refused "another user's process" "another user's" \
    asuser 65534 tiercel attach --pid "$program" --sampler hint
kill "$program"
wait "$program"
refused "a process that is gone" "there is no process" tiercel attach --pid "$program"
sed 's/.*window.*/history = 9/' settings > bad
refused "a history of 9 windows" "pages.history" tiercel attach --pid $$ --config bad
echo '[pages]
reserve = "900 MiB"' > bad
refused "a reserve above half a node" "pages.reserve" tiercel attach --pid $$ --config bad
