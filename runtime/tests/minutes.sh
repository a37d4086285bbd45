#!/bin/sh
# Runs the tests of vregions again and again: moves under writers, forks, a heap of them.
# In: OUT, minutes. Out: a line a test and one at the end; exit status 1 at the first failure.
out=$(cd "$1" && pwd)
end=$(($(date +%s) + ${2:-1} * 60))
round=0
while [ "$(date +%s)" -lt "$end" ]; do
    round=$((round + 1))
    for test in "vmem_checker 5" vmem_fork vmem_heap; do
        # shellcheck disable=SC2086 # a name and its arguments
        LD_PRELOAD="$out/checked/libtiercel.so" "$out/tests/"$test || {
            echo "FAIL $test in round $round"
            exit 1
        }
    done
done
echo "$round rounds passed"
