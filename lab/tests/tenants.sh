#!/bin/sh
# what: a daemon for all moves programs of two users while a third attacks, and ends with its broker
# machines: two-socket-optane
# programs: tiercel libtiercel.so hotset residency json asuser hostile attaches
# limit: 200

settings > settings
start_daemon() {
    tiercel daemon --all-users --fast 24MiB --config settings > daemon.log 2>&1 &
    daemon=$!
    wait_for 10 tiercel status --json
}
# start USER: hotset of that user, under the daemon's variables
start() {
    (
        eval "$(tiercel daemon --env)"
        exec env -u LD_PRELOAD asuser "$1" env "LD_PRELOAD=$LD_PRELOAD" hotset 16 3 2048 100
    ) > "$1.log" 2>&1 &
    eval "program$1=$!"
    wait_for 20 grep -q ready "$1.log" || not_ok "the program of user $1 starts" "$(cat "$1.log")"
}
# fast_kib PID LOG: KiB of its objects on nodes 0 and 1, by the independent check
fast_kib() {
    awk '$1 == "object" { print $3, $4 }' "$2" | while read -r address bytes; do
        residency "$1" "$address" "$bytes"
    done | awk '$1 == "node" && $2 < 2 { n += $3 } END { print n * 4 + 0 }'
}
within() {
    both=$(($(fast_kib "$program1001" 1001.log) + $(fast_kib "$program1002" 1002.log)))
    [ "$both" -le 27000 ]
}
moved() { [ "$(tiercel status --json | json moves.moved_bytes.promote)" -ge 1048576 ]; }

start_daemon || not_ok "the daemon starts" "$(cat daemon.log)"
grep -E '^(Uid|CapEff|Seccomp):' "/proc/$daemon/status" > rights
contains "the front has no capability" 'CapEff:.0000000000000000' rights
equal "and is not root" 0 "$(grep -c 'Uid:.0' rights)"
start 1001
start 1002
succeeds "memory of other users is moved by the broker" wait_for 30 moved
wait_for 30 within
at_most "KiB of both in fast memory under a budget of 24 MiB" 27000 "$both"
at_least "and the budget is used" 15000 "$both"

# Beside a user who attacks, the programs above go on, and an honest user's processes attach.
asuser 1003 hostile /run/tiercel/daemon.sock 12 > attacks 2>&1 &
hostile=$!
asuser 1004 attaches /run/tiercel/daemon.sock 10 > attaches.log
wait "$hostile"
show attacks
show attaches.log
tiercel status --json | json spent > spent
show spent
equal "each attack went on to the end, and none succeeded" 14 \
    "$(grep -c '^attack [a-z-]* [0-9]*$' attacks)"
set -- $(cat attaches.log)
at_least "honest processes attached, how many is the host's" 1 "$2"
equal "honest processes that were refused" 0 "$3"
equal "honest processes without an answer" 0 "$4"
at_most "KiB of the daemon's memory" 1048576 "$(awk '/VmRSS/ { print $2 }' "/proc/$daemon/status")"

kill -KILL "$(cat "/proc/$daemon/task/$daemon/children")"
wait "$daemon"
equal "without its broker the daemon ends with an error" 1 $?
start_daemon || not_ok "a new daemon starts" "$(cat daemon.log)"
for user in 1001 1002; do
    eval "pid=\$program$user"
    kill "$pid"
    wait "$pid"
    equal "the program of user $user ends well" 0 $?
    contains "its data are intact" intact "$user.log"
done
tiercel daemon --stop
wait "$daemon"
equal "the daemon ends well" 0 $?
equal "and its sockets are removed" 0 "$(ls /run/tiercel | wc -l)"
