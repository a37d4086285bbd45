# What guest tests may call. Read before each of them; `#` lines at their top are for the host.

# ok WHAT; not_ok WHAT WHY
ok() { echo "ok $1"; }
not_ok() { echo "not ok $1: $2"; }

# show FILE: indented, so that nothing in it reads as a verdict
show() { sed 's/^/  /' "$1"; }

# equal WHAT EXPECTED ACTUAL
equal() {
    if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected '$2', found '$3'"; fi
}

# at_least WHAT LEAST ACTUAL; at_most WHAT MOST ACTUAL (whole numbers)
at_least() {
    if [ "${3:-0}" -ge "$2" ]; then ok "$1"; else not_ok "$1" "expected at least $2, found '$3'"; fi
}
at_most() {
    if [ "${3:-1000000000}" -le "$2" ]; then
        ok "$1"
    else
        not_ok "$1" "expected at most $2, found '$3'"
    fi
}

# succeeds WHAT COMMAND...; its output is shown when it fails
succeeds() {
    what=$1
    shift
    if "$@" > /tmp/.succeeds 2>&1; then
        ok "$what"
    else
        status=$?
        show /tmp/.succeeds
        not_ok "$what" "status $status from: $*"
    fi
}

# contains WHAT TEXT FILE
contains() {
    if grep -q -e "$2" "$3"; then
        ok "$1"
    else
        show "$3"
        not_ok "$1" "'$2' is not in $3"
    fi
}

# wait_for SECONDS COMMAND...: until the command succeeds; fails when it never does. Attempts are
# counted, 20 a second: where the host does not run the guest, they take as much longer as all else
wait_for() {
    attempts=$(($1 * 20))
    shift
    until "$@" > /dev/null 2>&1; do
        attempts=$((attempts - 1))
        [ "$attempts" -gt 0 ] || return 1
        usleep 50000
    done
}

# tier_of NODE: the kernel's memory tier of a node; smaller is faster
tier_of() {
    for tier in /sys/devices/virtual/memory_tiering/memory_tier[0-9]*; do
        number=${tier##*memory_tier}
        for range in $(tr ',' ' ' < "$tier/nodelist"); do
            if [ "$1" -ge "${range%-*}" ] && [ "$1" -le "${range#*-}" ]; then echo "$number"; fi
        done
    done
}

# reach_knobs: the kernel's settings of NUMA balancing are files from then on, below $SCAN
SCAN=/sys/kernel/debug/sched/numa_balancing
reach_knobs() { [ -d "$SCAN" ] || mount -t debugfs none /sys/kernel/debug; }
# knobs: all of them in one line
knobs() { cat /proc/sys/kernel/numa_balancing "$SCAN"/scan_* | tr '\n' ' '; }
# by_kernel: OS pages that NUMA balancing has moved by itself, of all processes
by_kernel() { awk '$1 == "numa_pages_migrated" { print $2 }' /proc/vmstat; }

# reach_cgroups: control groups are folders from then on, below $CGROUPS
CGROUPS=/sys/fs/cgroup
reach_cgroups() { [ -e "$CGROUPS/cgroup.procs" ] || mount -t cgroup2 none "$CGROUPS"; }

# node_free_kib NODE
node_free_kib() { awk '/MemFree/ { print $4 }' "/sys/devices/system/node/node$1/meminfo"; }

# kib_on NODES PID LOG: KiB on some nodes of the objects that a program named in its log, by the
# independent check; needs the program residency
kib_on() {
    awk '$1 == "object" { print $3, $4 }' "$3" | while read -r address bytes; do
        residency "$2" "$address" "$bytes"
    done | awk -v nodes=" $1 " '
        $1 == "node" && index(nodes, " " $2 " ") { n += $3 }
        END { print n * 4 + 0 }'
}

# usage_agrees WHAT NODES [PID LOG]...: what the only daemon counts in fast memory, whose nodes are
# these, becomes what the kernel has there of the objects that the logs name. For each program it
# may be off by a 64th of an object of 16 MiB, the distance of OS pages that the daemon looks up,
# and as much of small objects and static data, which no log names; needs the program json
usage_agrees() {
    usage_what=$1
    shift
    wait_for 30 usage_is_near "$@"
    at_most "KiB that count ($usage_counted) and kernel differ by, $usage_what" \
        "$usage_slack" "$usage_off"
}
usage_is_near() {
    usage_nodes=$1
    usage_kernel=0
    usage_slack=0
    shift
    while [ $# -gt 0 ]; do
        usage_kernel=$((usage_kernel + $(kib_on "$usage_nodes" "$1" "$2")))
        usage_slack=$((usage_slack + USAGE_SLACK_KIB))
        shift 2
    done
    usage_counted=$(($(tiercel status --json | json budget.used_bytes) / 1024))
    usage_off=$((usage_counted - usage_kernel))
    usage_off=${usage_off#-}
    [ "$usage_off" -le "$usage_slack" ]
}
USAGE_SLACK_KIB=512

# settings: a configuration for a guest whose time means nothing: the kernel's work is translated
# and takes ten times as long, and no memory is faster than another. So the sampler may use more
# CPU time, and moves need not pay for themselves.
settings() {
    cat << 'TOML'
[policy]
tick_ms = 500
gate = "none"

[policy.trigger.time]
ticks = 1

[sampling]
cpu_budget = 0.3
TOML
}
