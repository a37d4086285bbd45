# check.sh: what the scripts beside it share; each reads it. In: $at, a folder of the script's own.
# Out: functions, counts. Knows nothing of compilers.
passed=0 failed=0

# name, command...: succeeds, or its output is shown
check() {
    name=$1
    shift
    if "$@" >"$at/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$name FAILED"
        cat "$at/log"
    fi
}

# file: it was compiled with checks
has_checks() { nm "$1" | grep -q ' tiercel_probe_limit$'; }

# The last line, and the script's status.
verdict() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}
