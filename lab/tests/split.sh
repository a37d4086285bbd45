#!/bin/sh
# what: an object larger than the budget is born with its head in fast memory
# machines: spr-cxl
# programs: tiercel libtiercel.so hotset residency json
# limit: 60

settings > settings
# One object of 128 MiB and a budget of a quarter of it; nothing moves.
tiercel run --fast 32MiB --trigger never --config settings --output summary \
    -- hotset 1 1 131072 20 > log 2> errors &
program=$!
wait_for 20 grep -q ready log || not_ok "the program starts" "$(cat log errors)"
pid=$(pidof hotset)
awk '$1 == "object" { print $3, $4 }' log > object
read -r address bytes < object
residency "$pid" "$address" "$bytes" > where
show where
percent=$(awk '$1 == "node" { all += $3; if ($2 == 0) fast += $3 }
    END { print all ? int(100 * fast / all) : -1 }' where)
at_least "percent of it on the fast node" 24 "$percent"
at_most "percent of it on the fast node, the budget's" 25 "$percent"
head=$(residency "$pid" "$address" 4194304 | awk '$1 == "node" && $2 == 0 { print $3 }')
equal "OS pages of its first 4 MiB there" 1024 "$head"
usage_agrees "for a head" 0 "$pid" log

kill "$pid"
wait "$program"
equal "the program's exit status is its own" 0 $?
contains "and its data are intact" intact log
