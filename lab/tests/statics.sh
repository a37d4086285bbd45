#!/bin/sh
# what: static data and shared memory move as any other, by the kernel's own account
# machines: spr-cxl
# programs: tiercel libtiercel.so statics residency json
# limit: 90

settings > settings

# on_fast ADDRESS BYTES: percent of it on the fast node, by the independent check
on_fast() {
    residency "$pid" "$1" "$2" | awk '
        $1 == "node" { all += $3; if ($2 == 0) good += $3 }
        END { print all ? int(100 * good / all) : -1 }'
}

# settled: the hot array is on the fast node, and most of the others are not
settled() {
    awk '$1 == "object" { print $3, $4, $5 }' log > objects
    [ "$(wc -l < objects)" = 4 ] || return 1
    cold=0
    while read -r address bytes kind; do
        case $kind in
        hot) hot=$(on_fast "$address" "$bytes") ;;
        cold) cold=$((cold + $(on_fast "$address" "$bytes"))) ;;
        esac
    done < objects
    cold=$((cold / 3))
    [ "$hot" -ge 90 ] && [ "$cold" -le 15 ]
}

# 48 MiB, of which 8 are hot; 25% of it may be in fast memory.
tiercel run --fast 25% --config settings --output summary -- statics 60 > log 2> errors &
program=$!
wait_for 20 grep -q ready log || not_ok "the program starts" "$(cat log errors)"
pid=$(pidof statics)
wait_for 40 settled
usage_agrees "for static data and shared memory" 0 "$pid" log
kill "$pid"
wait "$program"
show errors
show summary
at_least "percent of the hot array on the fast node" 90 "$hot"
at_most "percent of the cold data on the fast node" 15 "$cold"
