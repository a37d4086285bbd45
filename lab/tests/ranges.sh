#!/bin/sh
# what: the hot middle of a large object is recorded, planned, and born in fast memory
# machines: spr-cxl
# programs: tiercel libtiercel.so middle residency
# timed: yes
# limit: 150

succeeds "the program is recorded" \
    sh -c "tiercel record --quiet -o middle.profile -- middle 600000 < /dev/null"
tiercel plan middle.profile --fast 19MiB -o middle.plan > said
equal "a plan is made of it" 0 $?
show said
expected=$(sed -n 's/.*all fast: \([0-9]*\)% of the possible gain.*/\1/p' said)
at_least "percent of the gain that the plan expects with 19 of 64 MiB" 95 "$expected"

mkfifo lines
tiercel run --plan middle.plan --sampler none -- middle 1000 < lines > out &
program=$!
exec 3> lines
wait_for 60 grep -q "^range" out
pid=$(pidof middle)
read -r _ address bytes _ < out
# fast FROM BYTES: percent of a part of the object on the fast node
fast() {
    residency "$pid" $((address + $1)) "$2" |
        awk '$1 == "node" { all += $3; if ($2 == 0) fast += $3 }
             END { print all ? int(100 * fast / all) : -1 }'
}
mib=1048576
at_least "percent of the hot 8 MiB on the fast node" 99 "$(fast $((24 * mib)) $((8 * mib)))"
at_most "percent of the whole object there: the room's" 31 "$(fast 0 "$bytes")"
echo go >&3
exec 3>&-
wait "$program"
equal "the program ends well" 0 $?
