#!/bin/sh
# what: huge OS pages of which little is hot are broken up, and what is hot all over becomes huge
# machines: spr-cxl
# programs: tiercel hotcold hog
# timed: yes
# limit: 900

reach_knobs
THP=/sys/kernel/mm/transparent_hugepage/enabled
huge_kib() { awk '/^AnonHugePages/ { print $2 }' "/proc/$1/smaps_rollup"; }
has_huge() { [ "$(huge_kib "$1")" -ge "$2" ]; }
# figure NAME: of the report
figure() { tr ',{' '\n\n' < report | awk -F: -v name="\"$1\"" '$1 == name { print $2 + 0 }'; }
echo '[pages]
window_ms = 200' > settings
# Nothing but what is tested makes or breaks up any.
echo 100000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs

# One object of 64 KiB in 2 MiB gets most accesses, in slow memory; fast memory has room for two of
# 16 huge OS pages.
echo never > "$THP"
hog 0 12288 > hog.log &
wait_for 60 grep -q full hog.log || not_ok "node 0 fills up" "$(cat hog.log)"
echo always > "$THP"
hotcold objects=512 kib=64 hot=16 share=99 accesses=600m > out &
program=$!
wait_for 60 has_huge "$program" 16384
before=$(huge_kib "$program")
tiercel attach --pid "$program" --sampler emulator --fast 4MiB --json --config settings > report
wait "$program"
equal "the program ends well" 0 $?
show report
at_least "huge OS pages that are broken up, of $before KiB" 4 "$(figure splits)"
equal "none is refused" 0 "$(figure reshapes_failed)"
killall -KILL hog

# 8 MiB that are accessed all over, in small OS pages.
echo never > "$THP"
hotcold objects=8 kib=1024 hot=8 accesses=600m > out &
program=$!
wait_for 60 test -s "/proc/$program/smaps_rollup"
equal "none is huge at first" 0 "$(huge_kib "$program")"
tiercel attach --pid "$program" --sampler emulator --json --config settings > report &
tiercel=$!
made() { has_huge "$program" 2048; }
wait_for 60 made
at_least "KiB in huge OS pages" 2048 "$(huge_kib "$program")"
wait "$program"
equal "the program ends well" 0 $?
wait "$tiercel"
show report
at_least "huge OS pages that are made" 1 "$(figure collapses)"
