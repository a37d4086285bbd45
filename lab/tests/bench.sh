#!/bin/sh
# what: runs of the bench have the fast memory that they request, and leave nothing behind
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# limit: 150

# spec KEY METHOD FAST_BYTES ACCESSES: one run, as `tiercel lab bench` writes it
spec() {
    cat << JSON
{"key":"$1","command":["$(command -v hotcold)","objects=24","kib=1024","hot=3","accesses=$4"],
"method":$2,"fast_nodes":[0],"slow_nodes":[1],"fast_bytes":$3,"huge":"never","metric":"reported",
"knobs":[["/proc/sys/kernel/numa_balancing","0"]],"run":[]}
JSON
}

# figure LINE NAME: a number from the given line of the events
figure() { sed -n "$1p" events | sed "s/.*\"$2\":\([0-9]*\).*/\1/"; }

tiercel='{"tiercel":"sampler = \"none\"\n"}'
config='"sampler = \"none\"\n"'
planned="{\"planned\":{\"config\":$config,\"recorded\":$config,\"plan\":[\"--strategy\",\"fcfs\"]}}"
{
    echo "["
    spec first '"kernel"' 8388608 200k
    echo ","
    spec bound '{"bind":[1]}' null 200k
    echo ","
    spec ours "$tiercel" 8388608 200k
    echo ","
    spec damon '"damon"' 8388608 200k
    echo ","
    spec planned "$planned" 8388608 200k
    echo ","
    spec wrong '"kernel"' 8388608 nonsense
    echo "]"
} > specs.json
free=$(node_free_kib 0)
succeeds "the agent makes all runs" sh -c "tiercel lab agent specs.json > events"
show events
equal "each run says two things" 12 "$(wc -l < events)"

at_least "room of a run with 8 MiB" 7864320 "$(figure 2 free_bytes)"
at_most "and not more" 8912896 "$(figure 2 free_bytes)"
at_least "first touch fills it" 6815744 "$(figure 2 fast_bytes_max)"
at_most "and falls to the slow node then" 9437184 "$(figure 2 fast_bytes_max)"
at_least "the rest is on the slow node" 12582912 "$(figure 2 slow_bytes)"
equal "a bound run has nothing on the fast node" 0 "$(figure 4 fast_bytes)"
at_most "Tiercel has the same room" 9437184 "$(figure 6 fast_bytes_max)"
at_least "and sees the objects" 24 "$(figure 6 born)"
at_most "DAMON has it too" 9437184 "$(figure 8 fast_bytes_max)"
at_least "and its run is measured" 1000 "$(figure 8 time_ns)"
at_most "a planned run has the same room" 9437184 "$(figure 10 fast_bytes_max)"
contains "and says what became of its plan" '"plan":{"adapt":' events
equal "DAMON is off afterwards" 0 "$(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)"
contains "a run that fails says why" "cannot use accesses=nonsense" events

equal "nothing is mounted any more" 0 "$(grep -c lab-hog /proc/mounts)"
equal "the control group is gone" 0 "$(ls -d /sys/fs/cgroup/lab-run 2> /dev/null | wc -l)"
at_most "KiB of the fast node still held" 4096 $((free - $(node_free_kib 0)))
