#!/bin/sh
# what: each mode brings OS pages where the paper says, whichever nodes are full
# machines: two-socket-optane
# programs: tiercel placed filled residency
# limit: 400

# Accesses come from socket 0: node 0 is its DRAM, 1 the other socket's, 2 its Optane, 3 the
# other's. 128 KiB are hot on each of nodes 1, 2 and 3; node 0 has cold memory of the same program.
reach_knobs
found=$(knobs)
echo '[pages]
window_ms = 200' > settings
HOT_KIB=128
filler=

# where ADDRESS BYTES: the node that has at least nine tenths of a range, else `mixed`
where() {
    residency "$program" "$1" "$2" | awk '
        $1 == "node" { all += $3; if ($3 > most) { most = $3; node = $2 } }
        END { print (most * 10 >= all * 9) ? node : "mixed" }'
}

# ends: where the hot ranges are, in the order of nodes 1, 2, 3
ends() {
    awk '$1 == "hot" { print $2, $3 }' log | while read -r address bytes; do
        where "$address" "$bytes"
    done | tr '\n' ' ' | sed 's/ $//'
}
is_reached() { [ "$(ends)" = "$1" ]; }

# case MODE WHAT EXPECTED: tiers until it is as expected, 20 s at most, then checks that it stays
case_of() {
    tiercel attach --pid "$program" --mode "$1" --config settings > report 2>&1 &
    tiercel=$!
    wait_for "${4:-60}" is_reached "$3"
    sleep 2
    reached=$(ends)
    kill "$tiercel"
    wait "$tiercel"
    [ "$reached" = "$3" ] || show report
    equal "$1, $2: what was on 1, 2, 3 is on" "$3" "$reached"
}

# begin: the program with its memory in place, before nodes are filled
begin() {
    placed 0 8192 0 "$HOT_KIB" 1 2 3 > log &
    program=$!
    wait_for 20 grep -q ready log || not_ok "the program starts" "$(cat log)"
}

# fill NODE...: as other programs would
fill() {
    filled 0 "$@" > filled.log 2>&1 &
    filler=$!
    wait_for 60 grep -q full filled.log || not_ok "nodes $* fill up" "$(cat filled.log)"
}

finish() {
    kill "$program"
    wait "$program"
    contains "no byte is lost, $1" intact log
    [ -z "$filler" ] || kill -KILL "$filler"
    filler=
    sleep 1
}

for mode in cpm cpmx opm opmx opm-bd; do
    begin
    case_of "$mode" "all have room" "0 0 0"
    finish "$mode with room"
done

# With node 0 full: to the other socket's DRAM (what is there stays), or victims make room.
for mode in cpm cpmx opm opmx opm-bd; do
    begin
    fill 0
    case $mode in
    cpm*) case_of "$mode" "0 is full" "1 1 1" ;;
    *) case_of "$mode" "0 is full" "0 0 0" ;;
    esac
    finish "$mode with 0 full"
done

# Both DRAMs are full: of remote Optane to local Optane, or victims make room.
for mode in cpm cpmx opm opmx opm-bd; do
    begin
    fill 0 1
    case $mode in
    cpm*) case_of "$mode" "0 and 1 are full" "1 2 2" ;;
    *) case_of "$mode" "0 and 1 are full" "0 0 0" ;;
    esac
    finish "$mode with 0 and 1 full"
done
equal "the knobs are as they were found" "$found" \
    "$(knobs)"
