#!/bin/sh
# what: NUMA hint faults are seen, with the right CPU, by an ordinary user; the knobs are put back
# machines: two-socket-optane
# programs: samples hinted asuser
# limit: 120

SWITCH=/proc/sys/kernel/numa_balancing
PARANOID=/proc/sys/kernel/perf_event_paranoid
reach_knobs
chmod 777 /tmp

hint_faults() { awk '$1 == "numa_hint_faults" { print $2 }' /proc/vmstat; }

# begin KIB SECONDS: the program as an ordinary user, a thread on a CPU of each socket, stopped
begin() {
    : > program
    asuser 65534 hinted "$1" "$2" 0 1 > program &
    program=$!
    wait_for 20 grep -q ready program || not_ok "the program starts" "it did not"
    pid=$(awk '$1 == "ready" { print $2 }' program)
}

found=$(knobs)
paranoid=$(cat "$PARANOID")
asuser 65534 cat /proc/self/status | grep CapEff

# An ordinary user, with the kernel's scan as root has set it: mode 1, twenty times faster.
echo 2 > "$PARANOID"
echo 1 > "$SWITCH"
for knob in scan_delay_ms scan_period_max_ms scan_period_min_ms; do echo 200 > "$SCAN/$knob"; done
set_by_root=$(knobs)
begin 12288 8
before=$(hint_faults)
# The sampler's own memory is bound, which keeps it out of the machine's count.
numactl --membind=0 asuser 65534 samples hint 1 "$pid" > seen 2> errors ||
    not_ok "an ordinary user sees hint faults" "$(cat errors)"
all=$(($(hint_faults) - before))
wait "$program"
show program
show seen
# Of a thread's memory, by its thread: samples, and those on its CPU within its range.
per_thread() {
    awk 'NR == FNR { if ($1 == "thread") { cpu[$2] = $3; n++ } next }
        /^[0-9]/ && ($2 in cpu) { all += $6; if ($11 == cpu[$2]) good += $6 }
        END { print all + 0, good + 0, n }' program seen
}
set -- $(per_thread)
at_least "hint faults while it ran" 6000 "$all"
at_least "per mille of them seen" 990 $(($1 * 1000 / all))
at_least "per ten thousand with the right CPU" 9990 $(($2 * 10000 / $1))
equal "samples lost" 0 "$(awk '/^counted/ { print $6 }' seen)"
at_least "passes that ended" 3 "$(awk '/^counted/ { print $8 }' seen)"
equal "an ordinary user changes no knob" "$set_by_root" "$(knobs)"

# At paranoid 3 (Debian's patch; stock kernels treat it as 2) or above what is allowed: refused.
begin 1024 1
echo 3 > "$PARANOID"
if asuser 65534 samples hint 1 "$pid" > seen 2> errors; then
    not_ok "at paranoid 3 it is refused" "it was not"
else
    contains "at paranoid 3 it is refused, with the level" "perf_event_paranoid = 3" errors
    contains "and with the remedy" "sysctl kernel.perf_event_paranoid=2" errors
fi
echo 2 > "$PARANOID"
kill -CONT "$pid"
wait "$program"

# Off, and no right to switch it on.
echo 0 > "$SWITCH"
begin 1024 1
asuser 65534 samples hint 1 "$pid" > seen 2> errors
contains "switched off it is refused with the remedy" "sysctl kernel.numa_balancing=1" errors
kill -CONT "$pid"
wait "$program"

# Root: the knobs are set while it runs, and put back.
for knob in delay_ms:1000 period_max_ms:60000 period_min_ms:1000; do
    echo "${knob#*:}" > "$SCAN/scan_${knob%:*}"
done
before=$(knobs)
begin 4096 4
samples hint 1 "$pid" > seen 2> errors &
sampler=$!
wait_for 10 grep -q 1 "$SWITCH"
contains "root's sampler switches balancing on" 1 "$SWITCH"
contains "with passes of its own length" 200 "$SCAN/scan_period_min_ms"
wait "$sampler"
wait "$program"
equal "and puts the knobs back" "$before" "$(knobs)"

begin 4096 4
samples hint 1 "$pid" > seen 2> errors &
sampler=$!
wait_for 10 grep -q 1 "$SWITCH"
kill -KILL "$sampler"
wait "$sampler"
are_back() { [ "$(knobs)" = "$before" ]; }
wait_for 10 are_back
equal "killed, its child puts them back" "$before" "$(knobs)"
wait "$program"

begin 4096 4
samples hint 1 "$pid" > seen 2> errors &
sampler=$!
wait_for 10 grep -q 1 "$SWITCH"
kill -KILL $(cat "/proc/$sampler/task/$sampler/children") "$sampler"
wait "$sampler"
contains "with its child killed they stay changed" 200 "$SCAN/scan_period_min_ms"
wait "$program"
begin 1024 1
samples hint 1 "$pid" > seen 2> errors
wait "$program"
equal "and the next one puts back what was found" "$before" "$(knobs)"
echo "$paranoid" > "$PARANOID"
show errors
echo "found at first: $found"
