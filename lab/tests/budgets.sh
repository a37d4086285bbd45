#!/bin/sh
# what: a control group keeps its budget of DRAM, and gives what is above it to others
# machines: two-socket-optane
# programs: tiercel placed filled residency
# limit: 180

# One program has 8 MiB cold in DRAM (node 0), the other 8 MiB hot on Optane (node 2), accessed from
# socket 0. Both DRAMs are full: there the kernel moves nothing by itself. Free memory may come back
# meanwhile, as the kernel drops file cache: 8 MiB are more than that, so some must leave for them.
reach_knobs
reach_cgroups
mkdir -p "$CGROUPS/all/cold" "$CGROUPS/all/hot"

placed 0 8192 0 64 0 > cold.log &
cold=$!
placed 0 64 0 8192 2 > hot.log &
hot=$!
echo "$cold" > "$CGROUPS/all/cold/cgroup.procs"
echo "$hot" > "$CGROUPS/all/hot/cgroup.procs"
wait_for 20 grep -q ready cold.log
wait_for 20 grep -q ready hot.log
filled 0 0 1 > filled.log 2>&1 &
filler=$!
wait_for 60 grep -q full filled.log || not_ok "nodes 0 and 1 fill up" "$(cat filled.log)"

# in_dram PID LOG KIND: OS pages of its range of that kind on node 0
in_dram() {
    set -- "$1" $(awk -v kind="$3" '$1 == kind { print $2, $3 }' "$2")
    residency "$1" "$2" "$3" | awk '$1 == "node" && $2 == 0 { n = $3 } END { print n + 0 }'
}
# begin COLDS: attaches with this budget of the group `cold`; `hot` may have 16 MiB
begin() {
    echo "[pages]
window_ms = 200
[[budget]]
cgroup = \"/all/cold\"
fast = \"$1\"
[[budget]]
cgroup = \"$CGROUPS/all/hot\"
fast = \"16 MiB\"" > settings
    tiercel attach --cgroup /all --mode opmx --config settings > report 2>&1 &
    tiercel=$!
}
end() {
    kill "$tiercel"
    wait "$tiercel"
    show report
}

begin "16 MiB"
set -- $(awk '$1 == "hot" { print $2, $3 }' hot.log)
last=$(printf '0x%x' $(($1 + $2 - 4096)))
is_full() { tiercel why "$last" > why 2>&1 && grep -q "better nodes were full" why; }
wait_for 60 is_full
contains "what asks finds no room" "nothing there was to leave for it" why
at_least "cold OS pages of 2048 that stay within their group's budget" 2040 \
    "$(in_dram "$cold" cold.log cold)"
end
contains "the report has the groups" "budget .*/all/cold: .* of 16 *MiB" report

begin "4 MiB"
# How long it takes depends on how often the guest runs.
is_done() {
    [ "$(in_dram "$hot" hot.log hot)" -ge 512 ] && [ "$(in_dram "$cold" cold.log cold)" -le 1600 ]
}
wait_for 60 is_done
at_least "hot OS pages of 2048 that come in for those above the budget" 512 \
    "$(in_dram "$hot" hot.log hot)"
at_most "cold ones that are left" 1600 "$(in_dram "$cold" cold.log cold)"
at_least "of which the budget is kept" 1000 "$(in_dram "$cold" cold.log cold)"
end

echo '[[budget]]
cgroup = "/nowhere"
fast = "1 GiB"' > settings
tiercel attach --cgroup /all --config settings > output 2>&1 && not_ok "refused" "it was not"
contains "a budget of an unknown group is refused" "/nowhere is no control group" output
tiercel run --config settings -- true > output 2>&1
equal "and any where objects are placed" 125 $?
contains "with the remedy" "run --by pages" output

kill "$cold" "$hot"
kill -KILL "$filler"
wait "$cold" "$hot"
contains "no byte of the one is lost" intact cold.log
contains "nor of the other" intact hot.log
