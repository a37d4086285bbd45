#!/bin/sh
# what: huge OS pages of which little is hot are broken up, and what is hot all over becomes huge
# machines: spr-cxl
# programs: tiercel uneven
# timed: yes
# limit: 300

# What is accessed is 6 or 8 MiB: the model's caches have 5.
reach_knobs
THP=/sys/kernel/mm/transparent_hugepage
huge_kib() { awk '/^AnonHugePages/ { print $2 }' "/proc/$1/smaps_rollup"; }
# figure NAME: of the report
figure() { tr ',{' '\n\n' < report | awk -F: -v name="\"$1\"" '$1 == name { print $2 + 0 }'; }
# begin NODE ARGUMENTS: the program, in memory of that node
begin() {
    node=$1
    shift
    numactl --membind="$node" uneven "$@" > out &
    program=$!
    wait_for 20 grep -q ready out || not_ok "the program starts" "$(cat out)"
    before=$(huge_kib "$program")
}
# tier OPTIONS: for 16 windows
tier() {
    tiercel attach --pid "$program" --sampler emulator --for 800ms --json --config settings "$@" \
        > report
    after=$(huge_kib "$program")
    kill "$program"
    wait "$program"
    contains "no byte is lost" intact out
    show report
}
echo '[pages]
window_ms = 50' > settings
# Nothing but what is tested makes or breaks up any: what asks for huge OS pages gets them at its
# first touch, and khugepaged sleeps for a day.
echo madvise > "$THP/enabled"
echo 86400000 > "$THP/khugepaged/scan_sleep_millisecs"

# 192 KiB of each of 32 huge OS pages, where fast memory may have two.
begin 1 32 192 huge
equal "KiB in huge OS pages" 65536 "$before"
tier --fast 4MiB
at_least "huge OS pages that are broken up" 16 "$(figure splits)"
equal "none is refused" 0 "$(figure reshapes_failed)"
at_most "KiB in huge OS pages that are left" 32768 "$after"
at_least "bytes that come to fast memory in parts" 1048576 "$(figure promoted_bytes)"

# 8 MiB that are accessed all over, in small OS pages.
begin 0 4 2048 small
equal "none is huge at first" 0 "$before"
tier
at_least "huge OS pages that are made" 1 "$(figure collapses)"
at_least "KiB in huge OS pages" 2048 "$after"
