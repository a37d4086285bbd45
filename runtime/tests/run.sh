#!/bin/sh
# Runs the named tests of OUT/tests, each under the preload with assertions unless its name ends in
# _alone.
# In: OUT, names. Out: one line a test, a closing line, exit status 1 if any failed. No process may
# use more than a minute of CPU time. How long a test takes is the machine's: who runs this stops
# one that hangs, as `cargo xtask` does.
out=$(cd "$1" && pwd)
shift
failed=0 passed=0
ulimit -t 60
for name in "$@"; do
    case $name in
    *_alone) preload= ;;
    *) preload=$out/checked/libtiercel.so ;;
    esac
    if env ${preload:+LD_PRELOAD="$preload"} \
        TIERCEL_LIB="$out/checked/libtiercel.so" TIERCEL_TESTS="$out/tests" \
        "$out/tests/$name"; then
        echo "ok   $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name (status $?)"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
