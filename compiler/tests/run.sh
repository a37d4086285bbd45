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

# A plan whose sites and phases are the lines of the sources that end with a remark.
site() { # temperature, function, file, line
    node=0
    [ "$1" = COLD ] && node=1
    printf '{"label":"%s %s:%s","classes":[{"up_to_bytes":65536,' "$2" "$3" "$4"
    printf '"placements":[{"node":%s}]}]}\n' $node
}

plan_of() { # files
    grep -n '// [A-Z_]* [a-z_]*$' "$@" | sed 's/^.*\/\([^/:]*\):\([0-9]*\):.*\/\/ /\1 \2 /' |
        while read -r file line remark function; do
            case $remark in
            HOT | COLD) site "$remark" "ns::$function(int)" "$file" "$line" ;;
            PHASE) echo "$function:$line" >>"$at/phases" ;;
            esac
        done | paste -sd, >"$at/sites"
    sed 's/.*/{"name":"&"}/' "$at/phases" | paste -sd, >"$at/names"
    printf '{"machine":{"memories":[{"nodes":[0]},{"nodes":[1]}]},"phases":[%s],"sites":[%s]}' \
        "$(cat "$at/names")" "$(cat "$at/sites")"
}

applies() { # flags, further flags of what is linked, argument of the test
    # shellcheck disable=SC2086
    $clang -O1 -Wall -Wextra -Werror -c -o "$at/apply.o" "$tests/apply.c" &&
        $clang -gline-tables-only $1 -c -o "$at/apply_c.o" "$tests/apply_code.c" &&
        $clangxx -gline-tables-only $1 -c -o "$at/apply_cc.o" "$tests/apply_code.cc" &&
        $clangxx $2 -o "$at/apply" "$at/apply.o" "$at/apply_c.o" "$at/apply_cc.o" "$probe" &&
        "$at/apply" $3 && readelf -p .tiercel_applied "$at/apply" >"$at/applied" &&
        grep -q 'hot new_hot apply_code.cc:' "$at/applied" && ! has_checks "$at/apply"
}

# What is compiled cannot know whether a plan is there.
unplanned() { # plan
    ! TIERCEL_PLAN=$1 $clang -O1 "$plugin" -c -o "$at/none.o" "$tests/apply_code.c" \
        2>"$at/refused" && cat "$at/refused" && grep -q "$1" "$at/refused"
}

rm -f "$at/phases"
plan_of "$tests/apply_code.c" "$tests/apply_code.cc" >"$at/apply.plan"
export TIERCEL_CC=apply TIERCEL_PLAN="$at/apply.plan"
check "apply -O0" applies "-O0 $plugin" "" 0
for level in -O1 -O2 -O3; do
    check "apply $level" applies "$level $plugin" "" 1
done
check "apply -flto=thin" applies "-O2 -flto=thin" "-O2 -flto=thin $lto" 1
check "apply -flto=full" applies "-O2 -flto=full" "-O2 -flto=full $lto" full
check "no plan" unplanned "$at/nowhere"
check "a damaged plan" unplanned "$tests/run.sh"
unset TIERCEL_PLAN
export TIERCEL_CC=marks
for level in -O0 -O2; do
    check "marks C $level" digest "$clang" digest.c "$level -gline-tables-only" "$plugin"
    check "marks C++ $level" digest "$clangxx" digest.cc "$level -gline-tables-only" "$plugin"
done
unset TIERCEL_CC

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
