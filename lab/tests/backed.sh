#!/bin/sh
# what: a heap of vregions: policies move it between real nodes while it is written, nothing is lost
# machines: spr-cxl
# programs: tiercel libtiercel.so hotset vmem_checker residency hog json
# limit: 400

settings > settings

# on_fast ADDRESS BYTES: percent of it on node 0, by the independent check
on_fast() {
    residency "$pid" "$1" "$2" | awk '
        $1 == "node" { all += $3; if ($2 == 0) good += $3 }
        END { print all ? int(100 * good / all) : -1 }'
}
# fast_share LOG KIND: percent of the objects of a kind that lies on node 0, in $share
fast_share() {
    awk -v kind="$2" '$1 == "object" && $5 == kind { print $3, $4 }' "$1" > objects
    share=0
    count=0
    while read -r address bytes; do
        share=$((share + $(on_fast "$address" "$bytes")))
        count=$((count + 1))
    done < objects
    [ "$count" -gt 0 ] && share=$((share / count))
}
# sorted LOG: the hot objects lie on node 0, and hardly any other does. All are born there, as
# long as their number is unknown.
sorted() {
    fast_share "$1" cold && cold=$share && fast_share "$1" hot && hot=$share &&
        [ "$hot" -ge 90 ] && [ "$cold" -le 20 ]
}

tiercel run --fast 25% --backing vmem --config settings --json --output summary \
    -- hotset 16 3 3072 60 > log 2> errors &
program=$!
wait_for 20 grep -q ready log || not_ok "the program starts" "$(cat log errors)"
pid=$(pidof hotset)
wait_for 50 sorted log
at_least "percent of the hot objects on node 0" 90 "$hot"
at_least "percent of the cold objects elsewhere" 80 $((100 - cold))
usage_agrees "for a heap that moves itself" 0 "$pid" log
kill "$pid"
wait "$program"
equal "the program's exit status is its own" 0 $?
contains "and its data are intact" intact log
# Not all: a program has no thread for it until its heap is large, and the kernel moves the memory
# of one that gets no CPU to answer.
at_least "MiB that it moved itself" 1 $(($(json summary.moves.own_bytes < summary) >> 20))
show errors
show summary

# A checker writes numbers into a hot object while the daemon moves it, is killed, and is replaced.
mkdir -p run
export XDG_RUNTIME_DIR=/tmp/run
start_daemon() {
    tiercel daemon --fast 24MiB --backing vmem --config settings > daemon.log 2>&1 &
    daemon=$!
    wait_for 10 tiercel status --json
}
moved() { tiercel status --json | tr ',' '\n' | grep -c '"promote":[1-9]'; }
some_moved() { [ "$(moved)" -gt 0 ]; }
start_daemon || not_ok "the daemon starts" "$(cat daemon.log)"
(
    eval "$(tiercel daemon --env)"
    exec vmem_checker 120 8 heap
) > checked 2> errors &
checker=$!
wait_for 20 grep -q ready checked || not_ok "the checker starts" "$(cat checked errors)"
succeeds "something was promoted while it was written" wait_for 30 some_moved
# Meanwhile the fast node fills up: what has no room stays where it is.
hog 0 65536 > hog.log 2>&1 &
kill -KILL "$daemon"
wait "$daemon"
start_daemon || not_ok "a new daemon starts" "$(cat daemon.log)"
wait_for 100 grep -q full hog.log ||
    not_ok "node 0 fills up" "$(cat hog.log), $(node_free_kib 0) KiB are free"
wait "$checker"
equal "no write lost, no value torn" 0 $?
show errors
contains "by its own account" "none lost" checked
show checked
killall -KILL hog
tiercel daemon --stop
