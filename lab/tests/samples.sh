#!/bin/sh
# what: the emulator's samples are of the right process, thread, address, node and kind
# machines: spr-cxl
# programs: samples twin
# timed: yes
# limit: 120

# Two processes with the same addresses, one reads on node 0 with two threads, one writes on node 1.
numactl --membind=0 twin 24 200000 2 read > reader &
reader=$!
numactl --membind=1 twin 24 400000 1 write > writer &
writer=$!
wait_for 20 grep -q ready reader || not_ok "the reader starts" "it did not"
wait_for 20 grep -q ready writer || not_ok "the writer starts" "it did not"
succeeds "samples are taken" sh -c "samples emulator 200 $reader $writer > seen"
wait "$reader"
equal "the reader saw what is there" 0 $?
wait "$writer"
equal "the writer ends well" 0 $?
show seen

# sum COLUMN AWK-CONDITION: of the samples in the memory they share the address of (0x6000...)
sum() {
    awk -v reader="$reader" -v writer="$writer" \
        '/^[0-9]/ && $5 == 96 && ('"$2"') { n += $'"$1"' }
        END { print n + 0 }' seen
}

at_least "samples of the reader" 1000 "$(sum 6 '$1 == reader')"
at_least "samples of the writer" 1000 "$(sum 6 '$1 == writer')"
equal "of the reader on node 1" 0 "$(sum 6 '$1 == reader && $3 != 0')"
equal "of the writer on node 0" 0 "$(sum 6 '$1 == writer && $3 != 1')"
equal "writes of the reader" 0 "$(sum 6 '$1 == reader && $4 != "Read"')"
equal "reads of the writer" 0 "$(sum 6 '$1 == writer && $4 != "Write"')"
equal "of neither" 0 "$(sum 6 '$1 != reader && $1 != writer')"

# Both processes make the same accesses with the same caches, so each should have as many misses as
# the other, and each of the reader's threads half of them.
all=$(sum 7 1)
for part in '$1 == reader' '$1 == writer'; do
    share=$(($(sum 7 "$part") * 1000 / all))
    at_least "per mille of the weight: $part" 480 $share
    at_most "per mille of the weight: $part" 520 $share
done
read -r _ _ first second < reader
for thread in $first $second; do
    share=$(($(sum 7 "\$2 == $thread") * 1000 / all))
    at_least "per mille of the weight of one thread" 230 $share
    at_most "per mille of the weight of one thread" 270 $share
done

# The counters count every miss; the weights say how many misses the samples stand for.
misses=$(awk '/^counted/ { print $2 }' seen)
weight=$(awk '/^[0-9]/ { n += $7 } END { print n }' seen)
at_least "per mille of the misses that weights say" 980 $((weight * 1000 / misses))
at_most "per mille of the misses that weights say" 1020 $((weight * 1000 / misses))
equal "samples lost" 0 "$(awk '/^counted/ { print $6 }' seen)"
at_least "instructions are counted" 1000000 "$(awk '/^counted/ { print $4 }' seen)"

# Loads overlap, and wait for one another when there are too many; stores overlap more, in their
# buffer.
latency=$(cat /sys/devices/system/node/node0/access0/initiators/read_latency)
mean=$(awk -v reader="$reader" '$1 == reader && $5 == 96 { print $8 }' seen | head -n 1)
at_least "mean latency of a read from node 0, ns" "$latency" "$mean"
at_most "and not many times that" $((latency * 4)) "$mean"
