#!/bin/sh
# what: a tenant keeps what is guaranteed to it beside one whose hot memory moves all the time
# machines: spr-cxl
# programs: tiercel hotcold moving hog
# timed: yes
# limit: 1200

# Alone means alone in fast memory: the other tenant runs in both cases, on a CPU of its own, since
# caches and the link are shared whatever is placed where.
reach_knobs
reach_cgroups
echo never > /sys/kernel/mm/transparent_hugepage/enabled
mkdir -p "$CGROUPS/all/one" "$CGROUPS/all/two" "$CGROUPS/other"

in_group() {
    group=$1
    shift
    exec sh -c 'echo 0 > "$0" && exec "$@"' "$CGROUPS/$group/cgroup.procs" "$@"
}
# one LOG: 24 MiB, of which 8 get 99% of the accesses
one() {
    (in_group all/one taskset 1 hotcold objects=24 kib=1024 hot=8 share=99 accesses=60m) > "$1"
}
# other GROUP COMMAND...: 64 MiB, of which 16 are hot, others each time
other() {
    group=$1
    shift
    (in_group "$group" "$@" taskset 2 moving mib=64 window=16 steps=400 accesses=1m) > other.log &
}
# fill KIB: fast memory that is left
fill() {
    hog 0 "$1" > hog.log &
    wait_for 60 grep -q full hog.log || not_ok "node 0 fills up" "$(cat hog.log)"
}
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }
# Whether the first tenant has touched its memory: 6144 OS pages.
is_there() {
    pid=$(tail -n 1 "$CGROUPS/all/one/cgroup.procs")
    [ "$(awk '{ print $2 }' "/proc/$pid/statm")" -ge 6144 ]
}
# tiered SETTINGS LOG [GROUP]: the first tenant while control groups are tiered; the other one comes
# to this group when the first has its memory
tiered() {
    one "$2" &
    program=$!
    wait_for 60 is_there
    [ -z "$3" ] || other "$3"
    tiercel attach --cgroup /all --sampler emulator --config "$1" > report 2>&1 &
    tiercel=$!
    wait "$program"
    equal "the first tenant ends well: $1" 0 $?
    kill "$tiercel" 2> /dev/null
    wait "$tiercel"
    show report
    show "$2"
}

echo '[pages]
window_ms = 200' > alone
budget() { printf '[[budget]]\ncgroup = "%s"\nfast = "all"\nguarantee = "12 MiB"\n' "$1"; }
{ cat alone && budget /all/one && budget /all/two; } > together

# Half of the fast memory, 12 MiB and what the daemon takes.
fill 13700
other other numactl --membind=1
tiered alone alone.log
killall -KILL moving hog

fill 26000
tiered together together.log all/two
contains "the report has the groups" "budget .*/all/one: .* of all" report
killall -KILL moving hog

alone=$(picoseconds alone.log)
together=$(picoseconds together.log)
at_most "percent of its time alone ($alone ps an access alone, $together beside the other)" \
    105 $((100 * together / alone))
