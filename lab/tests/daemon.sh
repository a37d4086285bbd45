#!/bin/sh
# what: one daemon, two programs, one budget; a killed program, a killed daemon and a new one
# machines: two-socket-optane
# programs: tiercel libtiercel.so hotset residency json
# limit: 120

settings > settings
mkdir -p run
export XDG_RUNTIME_DIR=/tmp/run

start_daemon() {
    tiercel daemon --fast 24MiB --config settings > daemon.log 2>&1 &
    wait_for 10 tiercel status --json
}
# start NAME: hotset under the daemon's variables
start() {
    (
        eval "$(tiercel daemon --env)"
        exec hotset 16 3 2048 100
    ) > "$1.log" 2>&1 &
    eval "$1=$!"
    wait_for 20 grep -q ready "$1.log" || not_ok "$1 starts" "$(cat "$1.log")"
}
# fast_kib PID LOG: KiB of its objects on nodes 0 and 1, by the independent check
fast_kib() {
    awk '$1 == "object" { print $3, $4 }' "$2" | while read -r address bytes; do
        residency "$1" "$address" "$bytes"
    done | awk '$1 == "node" && $2 < 2 { n += $3 } END { print n * 4 + 0 }'
}
# within: both programs together hold most of the budget, and no more than it and a tenth
within() {
    both=$(($(fast_kib "$one" one.log) + $(fast_kib "$two" two.log)))
    [ "$both" -le 27000 ] && [ "$both" -ge 15000 ]
}
clients() { tiercel status --json | json clients.now; }

start_daemon || not_ok "the daemon starts" "$(cat daemon.log)"
start one
start two
wait_for 30 within
at_most "KiB in fast memory under a budget of 24 MiB" 27000 "$both"
at_least "and the budget is used" 15000 "$both"
usage_agrees "for two programs" "0 1" "$one" one.log "$two" two.log

kill -KILL "$two"
wait "$two"
succeeds "a killed program is forgotten" wait_for 10 sh -c \
    'test "$(tiercel status --json | json clients.now)" = 1'

kill -KILL "$(pidof tiercel)"
usleep 1500000
succeeds "the other goes on without the daemon" kill -0 "$one"
start_daemon || not_ok "a new daemon starts" "$(cat daemon.log)"
start two
at_least "and serves new programs" 1 "$(clients)"
# The first has no daemon any more, and no part in what this one counts.
usage_agrees "for the new program" "0 1" "$two" two.log
for program in one two; do
    eval "pid=\$$program"
    kill "$pid"
    wait "$pid"
    equal "$program ends well" 0 $?
    contains "its data are intact" intact "$program.log"
done
tiercel daemon --stop
