#!/bin/sh
# what: a timed guest sees the machine's latencies, and its own clock agrees with itself
# machines: two-socket-optane spr-cxl
# programs: chase
# timed: yes
# limit: 200

# chase prints `chase: right, N accesses, X ns each`
latency() { numactl --cpunodebind=0 --membind="$1" chase kib=24576 rounds=2 | awk '{ print $5 }'; }

for path in /sys/devices/system/node/node[0-9]*; do
    node=${path##*node}
    # The figure is that of the nearest CPUs; node 0's CPUs are not near every node.
    [ -e "$path/access0/initiators/node0" ] || continue
    expected=$(cat "$path/access0/initiators/read_latency")
    seen=$(latency "$node")
    verdict=$(awk -v seen="$seen" -v expected="$expected" \
        'BEGIN { print (seen > 0.97 * expected && seen < 1.03 * expected) ? "within 3%" : seen }')
    equal "a dependent load from node $node takes $expected ns" "within 3%" "$verdict"
done

one=$(latency 0)
eight=$(numactl --cpunodebind=0 --membind=0 chase kib=3072 chains=8 rounds=2 | awk '{ print $5 }')
times=$(awk -v one="$one" -v eight="$eight" 'BEGIN { printf "%d", 10 * one / eight }')
at_least "eight chains from node 0 are six times as fast as one, in tenths" 60 "$times"

before=$(awk '{ print int($1 * 100) }' /proc/uptime)
sleep 3
after=$(awk '{ print int($1 * 100) }' /proc/uptime)
at_least "a sleep of 3 s takes so long, in 10 ms" 300 $((after - before))
at_most "and not longer" 305 $((after - before))
