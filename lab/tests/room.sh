#!/bin/sh
# what: hosted and not moved, a program has as much fast memory as plain; counts are the kernel's
# machines: spr-cxl
# programs: tiercel libtiercel.so hotset hog residency json
# limit: 180

settings | sed 's/^gate.*/trigger = "never"/; /trigger.time/,/ticks/d' > settings
mkdir -p run
export XDG_RUNTIME_DIR=/tmp/run
# Whether a huge OS page is at hand is chance.
echo never > /sys/kernel/mm/transparent_hugepage/enabled

hog 0 98304 > hog.log &
wait_for 60 grep -q full hog.log || not_ok "node 0 fills up" "$(cat hog.log)"

# start LOG [PAUSE_MS]: eight objects of 16 MiB, each touched after a while; the fast node has room
# for some five
start() {
    hotset 8 2 16384 100 ${2:+"$2"} > "$1" &
    pid=$!
    wait_for 30 grep -q ready "$1" || not_ok "$1 starts" "$(cat "$1")"
}
finish() {
    kill "$pid"
    wait "$pid"
    contains "data of $1 are intact" intact "$1"
}
start plain.log
plain=$(kib_on 0 "$pid" plain.log)
finish plain.log
at_least "KiB of a plain program in fast memory" 49152 "$plain"
at_most "and not all of it" 120000 "$plain"

tiercel daemon --config settings > daemon.log 2>&1 &
daemon=$!
wait_for 10 tiercel status --json || not_ok "the daemon starts" "$(cat daemon.log)"
eval "$(tiercel daemon --env)"
start hosted.log
hosted=$(kib_on 0 "$pid" hosted.log)
# Two plain programs in a row differ by up to a fifth, since the kernel reclaims as it goes.
at_least "KiB of a hosted one, but for a quarter" $((plain * 3 / 4)) "$hosted"
usage_agrees "for a program on a full node" 0 "$pid" hosted.log
finish hosted.log
killall -KILL hog

# Under a budget that is less than the node has, births end at the budget's last OS page, however
# often a tick finds memory that was given to an object and is not touched yet.
succeeds "a budget is set" tiercel status --set-fast 12MiB
usleep 1500000
start bounded.log 700
for tick in 1 2 3 4; do
    bounded=$(kib_on 0 "$pid" bounded.log)
    at_most "KiB under a budget of 12 MiB, and an OS page, at tick $tick" 12292 "$bounded"
    usleep 500000
done
at_least "all of which is used, but for small objects and static data" 11776 "$bounded"
usage_agrees "for a program with a budget" 0 "$pid" bounded.log
finish bounded.log
kill "$daemon"
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
