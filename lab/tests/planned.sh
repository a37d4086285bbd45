#!/bin/sh
# what: a planned run has its objects born on the planned nodes, and moved at a phase's entry
# machines: spr-cxl
# programs: tiercel libtiercel.so born residency
# limit: 150

# The hashes of the sites, from a profile of the same program. Each large object has one of its own.
succeeds "a profile is recorded" tiercel record --sampler none -o born.profile -- born < /dev/null
tiercel plan born.profile --fast 50% -o born.plan > said
equal "a plan is made of it" 0 $?
show said

# site HASH NODE OTHER: in NODE, but in phase two in OTHER
site() {
    figures='"gain_ns":1.0,"confidence":0.5'
    echo "{\"hash\":$1,\"label\":\"x\",\"stack\":[],\"classes\":[{\"up_to_bytes\":1048576,"
    echo "\"objects\":1,\"peak_bytes\":1048576,\"placements\":[{\"node\":$2,$figures},"
    echo "{\"phase\":\"two\",\"node\":$3,$figures}]}]}"
}

# All of the left on node 0 and all of the right on node 1; in phase two the other way round.
turned() {
    echo '{"format":"tiercel plan","version":3,"program":{"path":"born","build_id":""},'
    echo '"machine":{"name":"by hand","memories":[{"name":"fast","nodes":[0],'
    echo '"capacity_bytes":67108864},{"name":"slow","nodes":[1],"capacity_bytes":67108864}]},'
    echo '"options":{"strategy":"joint","objective":"time","fast":"64MiB"},"expected":'
    echo '{"access_ns":1.0,"in_slowest_ns":1.0,"in_fastest_ns":1.0,"moved_bytes":0},'
    echo '"unplanned":"slowest","phases":[{"name":"one","moves":false},'
    echo '{"name":"two","moves":true}],"modules":[],"sites":['
    comma=
    awk '/"hash"/ { hash = $2 } /"label":/ { print hash $2 }' born.plan | tr -d ' ' > places
    while IFS=, read -r hash place; do
        case $place in
        *make_left*) echo "$comma$(site "$hash" 0 1)" ;;
        *make_right*) echo "$comma$(site "$hash" 1 0)" ;;
        *) continue ;;
        esac
        comma=,
    done < places
    echo ']}'
}
turned > turned.plan

# on PLACE: OS pages of its objects by node, `node 0 1024`
on() {
    grep "^range $1 " out | while read -r _ _ address bytes; do
        residency "$pid" "$address" "$bytes"
    done | awk '/^node/ { sum[$2] += $3 } END { for (n in sum) printf "node %s %s", n, sum[n] }'
}

mkfifo lines
tiercel run --plan turned.plan --output summary -- born < lines > out &
exec 3> lines
wait_for 60 grep -q "^in one" out
pid=$(pidof born)
equal "the left is born on the fast node" "node 0 1024" "$(on left)"
equal "the right is born on the slow node" "node 1 1024" "$(on right)"
echo go >&3
wait_for 60 grep -q "^in two" out
equal "when phase two is entered, the left is on the slow node" "node 1 1024" "$(on left)"
equal "and the right on the fast one" "node 0 1024" "$(on right)"
echo go >&3
exec 3>&-
wait $!
equal "the program ends well" 0 $?
show summary
contains "the summary says what matched" "8 of 8 sites matched" summary
