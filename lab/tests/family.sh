#!/bin/sh
# what: children of an attached process, and processes of a control group, are tiered with it
# machines: two-socket-optane
# programs: tiercel placed filled residency
# limit: 400

# Each process has hot memory on Optane (node 2), accessed from socket 0, and cold memory in its
# DRAM (node 0), which is full: there the kernel moves nothing by itself.
reach_knobs
found=$(knobs)
echo '[pages]
window_ms = 200' > settings

# hot_in_dram PID LOG: OS pages of its hot range on node 0
hot_in_dram() {
    set -- "$1" $(awk '$1 == "hot" { print $2, $3 }' "$2")
    residency "$1" "$2" "$3" | awk '$1 == "node" && $2 == 0 { all = $3 } END { print all + 0 }'
}

# fill KIB: all of node 0 but this
fill() {
    filled "$1" 0 > filled.log 2>&1 &
    filler=$!
    wait_for 60 grep -q full filled.log || not_ok "node 0 fills up" "$(cat filled.log)"
}

# moved_up: MiB in the report; less than one are KiB there
moved_up() { awk '/^moves/ && $3 ~ /MiB/ { print int($3) }' report; }

# A shell that starts its program after it was attached to.
sh -c 'while [ ! -e go ]; do sleep 0.1; done
    PLACED_GO=gone placed 0 8192 0 4096 2 > child.log & echo $! > child; wait' &
parent=$!
tiercel attach --pid "$parent" --mode opmx --config settings > report 2>&1 &
tiercel=$!
wait_for 20 grep -q "by OS page" report
kernels=$(by_kernel)
touch go
wait_for 20 grep -q ready child.log || not_ok "the child starts" "$(cat child.log)"
child=$(cat child)
# Before its first access: the kernel never finds room.
fill 0
touch gone
childs_in_dram() { [ "$(hot_in_dram "$child" child.log)" -ge 768 ]; }
wait_for 180 childs_in_dram
at_least "the child's hot OS pages of 1024 that are in DRAM" 768 \
    "$(hot_in_dram "$child" child.log)"
at_most "OS pages that the kernel itself moved" 256 $(($(by_kernel) - kernels))
kill "$child"
wait "$tiercel"
equal "attach ends when the last process has ended" 0 $?
show report
at_least "processes that the report counts" 2 \
    "$(awk '/processes$/ { print $(NF - 1) }' report)"
at_least "MiB of the child that Tiercel moved up" 2 "$(moved_up)"
contains "no byte of the child is lost" intact child.log
equal "the knobs are as they were found" "$found" "$(knobs)"

kill -KILL "$filler"

# A control group with two processes, one of them in a group below.
reach_cgroups
mkdir -p "$CGROUPS/tenant/below"
wait "$filler"
rm gone
PLACED_GO=gone placed 0 8192 0 4096 2 > one.log &
one=$!
PLACED_GO=gone placed 0 8192 0 4096 2 > two.log &
two=$!
echo "$one" > "$CGROUPS/tenant/cgroup.procs"
echo "$two" > "$CGROUPS/tenant/below/cgroup.procs"
wait_for 20 grep -q ready one.log
wait_for 20 grep -q ready two.log
fill 0
tiercel attach --cgroup /tenant --mode opmx --config settings > report 2>&1 &
tiercel=$!
wait_for 20 grep -q "by OS page" report
kernels=$(by_kernel)
touch gone
both_in_dram() { echo $(($(hot_in_dram "$one" one.log) + $(hot_in_dram "$two" two.log))); }
is_begun() { [ "$(both_in_dram)" -ge 768 ]; }
wait_for 180 is_begun
kill "$tiercel"
wait "$tiercel"
at_least "hot OS pages of 2048 that both have in DRAM" 768 "$(both_in_dram)"
at_most "of which the kernel itself moved" 256 $(($(by_kernel) - kernels))
show report
contains "the report names the control group" "control group /sys/fs/cgroup/tenant" report
equal "and counts its processes" 2 "$(awk '/processes$/ { print $(NF - 1) }' report)"
at_least "MiB that Tiercel moved up of both" 2 "$(moved_up)"
kill "$one" "$two"
kill -KILL "$filler"
wait "$one" "$two"
contains "no byte of the first is lost" intact one.log
contains "nor of the second" intact two.log

tiercel attach --cgroup /tenant > output 2>&1 && not_ok "an empty group is refused" "it was not"
contains "an empty group is refused" "no process is in control group" output
tiercel attach --cgroup /nowhere > output 2>&1 && not_ok "an unknown group is refused" "it was not"
contains "an unknown group is refused" "is no control group" output
# A sandbox may show an empty file.
mount --bind /dev/null /proc/zoneinfo
tiercel attach --pid $$ > output 2>&1 && not_ok "unknown room is refused" "it was not"
contains "unknown room is refused" "zoneinfo names no node's memory" output
tiercel doctor > output
contains "and doctor says so" "no .*os-pages .*attach moves nothing" output
umount /proc/zoneinfo
tiercel doctor > output
contains "which is well otherwise" "ok .*os-pages" output
equal "and the knobs are as they were found" "$found" "$(knobs)"
