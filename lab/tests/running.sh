#!/bin/sh
# what: programs that started without Tiercel get their hot memory into DRAM, and nothing stays
# machines: two-socket-optane
# programs: tiercel placed filled redis-server redis-cli redis-benchmark python3
# trees: /usr/lib/python3.11/encodings /usr/lib/python3.11/codecs.py
# limit: 600

# DRAM is full when a program starts, so its memory comes to Optane, and when it is attached to, so
# the kernel moves nothing by itself. In its control group another one has 8 MiB cold in DRAM.
reach_knobs
reach_cgroups
found=$(knobs)
echo never > /sys/kernel/mm/transparent_hugepage/enabled
mkdir -p "$CGROUPS/tenant"
echo '[pages]
window_ms = 200' > settings

placed 0 8192 0 64 0 > cold.log &
cold=$!
echo "$cold" > "$CGROUPS/tenant/cgroup.procs"
wait_for 20 grep -q ready cold.log
# fill: both DRAMs, with what came back since
fill() {
    : > filled.log
    filled 0 0 1 > filled.log 2>&1 &
    fillers="$fillers $!"
    wait_for 60 grep -q full filled.log || not_ok "nodes 0 and 1 fill up" "$(cat filled.log)"
}
fill

# moved_up: MiB in the report; less than one are KiB there
moved_up() { awk '/^moves/ && $3 ~ /MiB/ { print int($3) }' report; }
in_group() { exec sh -c 'echo 0 > "$0" && exec "$@"' "$CGROUPS/tenant/cgroup.procs" "$@"; }
# in_dram: OS pages of the program on nodes 0 and 1
in_dram() {
    tr ' ' '\n' < "/proc/$program/numa_maps" |
        awk -F= '$1 == "N0" || $1 == "N1" { n += $2 } END { print n + 0 }'
}
policies() { awk '{ print $2 }' "/proc/$program/numa_maps" | sort -u | tr '\n' ' '; }
begin() {
    : > report
    tiercel attach --cgroup /tenant --mode opmx --config settings > report 2>&1 &
    tiercel=$!
    wait_for 20 grep -q "by OS page" report
}
is_in_dram() { [ "$(in_dram)" -ge $((before + 256)) ]; }
are_back() { [ "$(knobs)" = "$found" ]; }
# tiered NAME: the program
tiered() {
    fill
    before=$(in_dram)
    policies=$(policies)
    kernels=$(by_kernel)
    begin
    wait_for 180 is_in_dram
    at_least "$1: OS pages that came to DRAM" 256 $(($(in_dram) - before))
    kill "$tiercel"
    wait "$tiercel"
    show report
    at_least "$1: MiB that Tiercel moved up" 1 "$(moved_up)"
    at_most "$1: OS pages that the kernel moved by itself" 256 $(($(by_kernel) - kernels))
    equal "$1: the knobs are as they were found" "$found" "$(knobs)"
    begin
    kill -KILL "$tiercel"
    wait "$tiercel"
    wait_for 20 are_back
    equal "$1: after kill -9 as well" "$found" "$(knobs)"
    equal "$1: its memory policies are as they were" "$policies" "$(policies)"
}

(in_group taskset 1 redis-server --save "" --port 0 --unixsocket /tmp/socket \
    --enable-debug-command yes) > redis.log &
program=$!
answers() { [ "$(redis-cli -s socket ping)" = PONG ]; }
wait_for 60 answers || not_ok "redis starts" "$(cat redis.log)"
redis_load() { redis-benchmark -s socket -q -d 1024 -r 4000 -P 16 "$@"; }
redis_load -t set -n 12000 > load.log
digest=$(redis-cli -s socket debug digest)
redis_load -t get -n 1000000000 > load.log &
load=$!
tiered redis
kill "$load"
equal "redis: its data is as it was" "$digest" "$(redis-cli -s socket debug digest)"
redis-cli -s socket shutdown nosave
wait "$program"

cat > program.py << 'END'
import posix

hot = bytearray(4 << 20)
places = range(0, len(hot), 4096)
rounds = 0
print("ready", flush=True)
while "over" not in posix.listdir("."):
    rounds += 1
    for place in places:
        hot[place] = (hot[place] + 1) % 251
good = sum(hot) == len(places) * (rounds % 251)
print("intact" if good else "corrupt")
END
(in_group taskset 1 python3 -I -S program.py) > python.log 2>&1 &
program=$!
wait_for 60 grep -q ready python.log || not_ok "python starts" "$(cat python.log)"
tiered python
touch over
wait "$program"
contains "python: no byte is lost" intact python.log

kill "$cold"
kill -KILL $fillers
wait "$cold"
contains "no byte of the other one is lost" intact cold.log
