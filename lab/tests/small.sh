#!/bin/sh
# what: small objects of two sites lie in blocks apart, and a plan puts the hot ones in fast memory
# machines: spr-cxl
# programs: tiercel libtiercel.so truth
# timed: yes
# limit: 400

# 200,000 nodes of each kind, born in turns; the hot ones get all accesses after that.
nodes="truth pattern=6 ms=150"
# share WORD FILE: percent of the accesses to nodes that the line with this word has; the arrays of
# pointers to the nodes are static data
share() {
    awk -v word="$1" '$1 ~ /%$/ && /_node truth.c/ { all += $1; if (index($0, word)) own += $1 }
        END { print all ? int(100 * own / all) : -1 }' "$2"
}
# on WORD NODE FILE: the percentage of a row's bytes on a node; a node alone has all
on() {
    awk -v word="$1" -v node="$2" 'index($0, word) {
        for (i = 1; i < NF && $i != node; i++)
            ;
        print i == NF ? 0 : $(i + 1) ~ /%/ ? int($(i + 1)) : 100
        exit }' "$3"
}

tiercel record --quiet -o nodes.profile -- $nodes
equal "a profile is recorded" 0 $?
tiercel profile show nodes.profile > said
show said
at_least "percent of the accesses to nodes are the hot site's" 90 \
    "$(share "  hot_node truth.c" said)"
contains "the rest says who shares its blocks" "mixed: .*_node truth.c:[0-9]* [0-9]* to [0-9]*%" \
    said

tiercel plan nodes.profile --fast 60% -o nodes.plan > said
equal "a plan is made of it" 0 $?
show said
tiercel run --plan nodes.plan --fast 60% --tick 20ms --output summary -- $nodes > said
equal "the program ends well" 0 $?
show summary
at_least "percent of the hot nodes are in fast memory" 80 "$(on "hot_node truth.c" node0 summary)"
at_most "and of the cold ones, where room is left" 25 "$(on "cold_node truth.c" node0 summary)"
