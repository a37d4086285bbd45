#!/bin/sh
# what: under --adapt a plan is kept for the input it was made of and abandoned for another one
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# timed: yes
# limit: 400

# 64 MiB, half of it fast. When the plan is recorded, eight objects get 95% of the accesses; with
# the other input, the other eight do.
objects="objects=16 kib=4096 hot=8"
# picoseconds an access: `hotcold: right, N accesses, X ns each`
picoseconds() { awk '/^hotcold: right/ { print int($5 * 1000) }' "$1"; }
echo 'sampling = { period = 512, cpu_budget = 0.05 }' > settings
tiercel record --quiet --config settings -o own.profile -- hotcold $objects share=95 accesses=2m
equal "a profile is recorded" 0 $?
tiercel plan own.profile --fast 50% -o own.plan > said
equal "and planned" 0 $?
contains "the plan says what fast memory is to serve" '"fast_share": 0\.[5-9]' own.plan

# run NAME SHARE ARGUMENTS: its output and summary
run() {
    name=$1 share=$2
    shift 2
    tiercel run --plan own.plan --config settings --tick 10ms --output "$name.summary" "$@" \
        -- hotcold $objects "share=$share" accesses=20m > "$name"
    equal "$name: the program ends well" 0 $?
    grep -e "^plan" -e "^remark" -e "^moves" "$name.summary"
    cat "$name"
}
run own 95
run own-adapt 95 --adapt
run other 5
run other-adapt 5 --adapt
equal "its own input: it is kept" 0 "$(grep -c "abandoned" own-adapt.summary)"
at_most "and costs what looking on costs, ps an access" $(($(picoseconds own) * 107 / 100)) \
    "$(picoseconds own-adapt)"
contains "another input: it is abandoned" "the plan was abandoned: .* predicted [5-9].%" \
    other-adapt.summary
at_most "and the policy does better, ps an access" $(($(picoseconds other) * 90 / 100)) \
    "$(picoseconds other-adapt)"
