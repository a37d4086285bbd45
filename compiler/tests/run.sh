#!/bin/sh
# run.sh: the tests of the plug-in, each built in several ways. In: the folder of what was built.
# Out: a line for each failure, then `N passed, M failed`. Knows nothing of the runtime.
set -u
out=$1
clang=${CLANG:-clang-19}
clangxx=$(echo "$clang" | sed 's/clang/clang++/')
tests=$(dirname "$0")
at=$out/tests
mkdir -p "$at"
. "$tests/check.sh"

plugin=-fpass-plugin=$out/libtiercel_pass.so
probe=$out/libtiercel_probe.a
lto="-fuse-ld=lld -Wl,--load-pass-plugin=$out/libtiercel_pass.so"

# Lines that are reported: the harness is compiled plainly, the patterns with the plug-in.
lines() { # how to compile, argument of the test, how to link
    # shellcheck disable=SC2086
    $clang -O1 -Wall -Wextra -Werror -c -o "$at/lines.o" "$tests/lines.c" &&
        $clang -Wall -Wextra -Werror $1 -c -o "$at/patterns.o" "$tests/patterns.c" &&
        $clang ${3:-} -o "$at/lines" "$at/lines.o" "$at/patterns.o" "$probe" &&
        "$at/lines" $2
}

# The same output as without the plug-in, which leaves nothing undone.
digest() { # compiler, source, flags, further flags of what has the probe
    # shellcheck disable=SC2086
    $1 $3 -fuse-ld=lld -o "$at/plain" "$tests/$2" -pthread -lm &&
        $1 $3 $4 -o "$at/probed" "$tests/$2" "$probe" -pthread -lm &&
        "$at/plain" >"$at/plain.out" && "$at/probed" >"$at/probed.out" &&
        cmp "$at/plain.out" "$at/probed.out" && has_checks "$at/probed" && ! has_checks "$at/plain"
}

for level in -O0 -O1 -O2 -O3; do
    check "lines $level" lines "$level $plugin" ""
    check "digest C $level" digest "$clang" digest.c "$level" "$plugin"
    check "digest C++ $level" digest "$clangxx" digest.cc "$level" "$plugin"
done
check "calls -O2" lines "-O2 $plugin" strict
# Without optimisation lld's thin pipeline calls no plug-in: clang loads it then, as `tiercel cc`
# has it do.
for kind in thin full; do
    for level in "-O0 $plugin" -O2; do
        flags="$level -flto=$kind"
        check "lines $flags" lines "$flags" "" "$flags $lto"
        check "digest C $flags" digest "$clang" digest.c "-flto=$kind" "$flags $lto"
        check "digest C++ $flags" digest "$clangxx" digest.cc "-flto=$kind" "$flags $lto"
    done
done
if grep -qw avx2 /proc/cpuinfo; then
    check "lines -mavx2" lines "-O3 -mavx2 $plugin" ""
fi

# Of another version: it says so, and compiles nothing.
refused() { ! clang -O1 $plugin -c -o "$at/foreign.o" "$tests/patterns.c"; }
if command -v clang >/dev/null && ! clang --version | grep -q "version 19"; then
    check "another LLVM is refused" refused
fi

verdict
