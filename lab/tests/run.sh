#!/bin/sh
# what: hot objects come to fast memory, by the kernel's own account
# machines: two-socket-optane spr-cxl
# programs: tiercel libtiercel.so hotset residency json
# limit: 90
# short: yes

settings > settings
case $LAB_MACHINE in
two-socket-optane) fast="0 1" ;;
*) fast="0" ;;
esac

# on_fast ADDRESS BYTES: percent of it on fast nodes, by the independent check
on_fast() {
    residency "$pid" "$1" "$2" | awk -v fast=" $fast " '
        $1 == "node" { all += $3; if (index(fast, " " $2 " ")) good += $3 }
        END { print all ? int(100 * good / all) : -1 }'
}

# settled: the hot objects are on fast nodes, and most of the cold ones are not
settled() {
    awk '$1 == "object" { print $3, $4, $5 }' log > objects
    [ "$(wc -l < objects)" = 16 ] || return 1
    hot=0
    cold=0
    while read -r address bytes kind; do
        case $kind in
        hot) hot=$((hot + $(on_fast "$address" "$bytes"))) ;;
        cold) cold=$((cold + $(on_fast "$address" "$bytes"))) ;;
        esac
    done < objects
    hot=$((hot / 3))
    cold=$((cold / 13))
    [ "$hot" -ge 90 ] && [ "$cold" -le 15 ]
}

# 48 MiB, of which 9 are hot and born last; 25% of it may be in fast memory.
tiercel run --fast 25% --config settings --json --output summary \
    -- hotset 16 3 3072 60 > log 2> errors &
program=$!
wait_for 20 grep -q ready log || not_ok "the program starts" "$(cat log errors)"
pid=$(pidof hotset)
wait_for 40 settled
at_least "percent of the hot objects on fast nodes" 90 "$hot"
at_most "percent of the cold objects on fast nodes" 15 "$cold"
usage_agrees "while it goes on" "$fast" "$pid" log

kill "$pid"
wait "$program"
equal "the program's exit status is its own" 0 $?
contains "and its data are intact" intact log
show errors
succeeds "the summary is JSON" json "" < summary
show summary
