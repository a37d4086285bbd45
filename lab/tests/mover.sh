#!/bin/sh
# what: the kernel mover reaches every node, and reports what it could not move
# machines: two-socket-optane
# programs: hotset residency hog move_range
# limit: 60
# short: yes

# Two objects of 24 MiB: of the 128 MiB of node 1 the root file system may take 32, and the kernel
# keeps some.
hotset 2 1 24576 100 > log &
program=$!
wait_for 10 grep -q ready log || not_ok "the program starts" "$(cat log)"
pid=$(pidof hotset)
set -- $(grep ' hot$' log)
address=$3
bytes=$4

# on NODE: OS pages of the hot object there, by the independent check
on() {
    residency "$pid" "$address" "$bytes" |
        awk -v node="$1" '$1 == "node" && $2 == node { print $3 }'
}

for node in 3 1 2 0 2; do
    move_range "$pid" "$address" "$bytes" "$node" > moves
    equal "to node $node: the mover says all is there" "resident 25161728" \
        "$(grep -e resident -e failed moves)"
    at_least "to node $node: the independent check agrees" 6143 "$(on "$node")"
done

move_range "$pid" "$address" "$bytes" 9 > moves
contains "a node that does not exist is named as the reason" "failed NoNode" moves
at_least "and nothing has moved" 6143 "$(on 2)"

# 12 MiB free, half of the object: above the node's high watermark of 9.4 MiB, below which the
# kernel reclaims, and ends programs where it finds nothing. What it keeps in per-CPU lists does not
# matter.
hog 1 12288 > hog.log &
wait_for 30 grep -q full hog.log || not_ok "node 1 fills up" "$(cat hog.log)"
move_range "$pid" "$address" "$bytes" 1 > moves
contains "a full node is named as the reason" "failed NoMemory" moves
moved=$(awk '$1 == "moved" { print $2 / 4096 }' moves)
at_most "what did move is what the independent check sees" "$(($(on 1) + 0))" "$moved"
kill -KILL "$(pidof hog)"

kill "$pid"
wait "$program"
equal "the program ends well" 0 $?
contains "and its data are intact" intact log
move_range "$pid" "$address" "$bytes" 0 > moves
contains "a process that is gone is named as the reason" "failed Vanished" moves
