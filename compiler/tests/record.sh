#!/bin/sh
# record.sh: what `tiercel record --sampler compiled` finds of programs that `tiercel cc` compiled.
# In: the folder of what was built, the command. Out: a line for each failure, then `N passed, M
# failed`.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
at=$1/record
tiercel=$2
clang=clang-19
rm -rf "$at"
mkdir -p "$at"
cd "$at" || exit 1
. "$tests/check.sh"

# A number of a line of JSON, wherever it stands.
number() { # name, line
    echo "$2" | sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p"
}

# Misses of a site by its label: reads, writes.
misses() { # label
    "$tiercel" profile show --json app.profile | tr '{' '\n' | grep "\"label\":\"$1" |
        while read -r site; do echo "$(number reads "$site") $(number writes "$site")"; done
}

# Both counts are those that are wanted.
is() { # label, reads, writes
    found=$(misses "$1")
    echo "$1: $found, wanted $2 $3"
    [ "$found" = "$2 $3" ]
}

record() { # command...
    "$tiercel" record --quiet -o app.profile --sampler compiled --rate 1 \
        --caches 32K/8,256K/8,1M/16 -- "$@"
}

# The library and the program share one set of caches: what one read the other hits.
two_modules() { # flags
    flags="$1 -g -fno-optimize-sibling-calls"
    # shellcheck disable=SC2086
    "$tiercel" cc $flags -shared -fPIC "$tests/sums.c" -DLIBRARY -o libsums.so &&
        "$tiercel" cc $flags "$tests/sums.c" -o app -L. -lsums -Wl,-rpath,"$at" && record ./app &&
        is large_table 131072 0 && is small_table 8192 0 && is result_table 0 65536
}
for flags in -O0 -O1 -O2 -O3 "-O2 -flto=thin" "-O2 -flto"; do
    check "two modules $flags" two_modules "$flags"
done

# Twenty steps over five arrays of 1.6 MB: each is missed in each pass, and none is moved aside.
static_data() {
    "$tiercel" fc -O2 -g "$tests/digest.f90" -o app && record ./app &&
        "$tiercel" profile show app.profile && [ "$(misses 'static: ' | wc -l)" = 5 ]
}
check "static data of Fortran" static_data

# A plan, a report and a prediction are made of it as of any profile.
used() {
    "$tiercel" plan app.profile --machine spr-cxl --fast 50% -o app.plan &&
        "$tiercel" whatif app.profile --machine spr-cxl &&
        "$tiercel" report app.profile --plan app.plan --machine spr-cxl -o app.html &&
        "$tiercel" profile diff app.profile app.profile
}
check "plan, whatif, report, diff" used

# Where a container allows it, addresses are the same each time, and so are the sampled lines.
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

at_rate() { # rate, profile
    $fixed "$tiercel" record --quiet -o "$2" --sampler compiled --rate "$1" \
        --caches 32K/8,1M/16,4M/16 -- ./app mib=64 lookups=60k seed=1 >/dev/null
}

# A number of what `profile diff --fidelity` found is within bounds.
between() { # name, least, most
    number "$1" "$(cat found.json)" |
        awk -v name="$1" -v least="$2" -v most="$3" \
            '{ print name, $1; ok = $1 >= least && $1 <= most } END { exit !ok }'
}

# A 32nd of the lines of a fixed run says the same as all of them: at most 1% of the misses are at
# other sites, and sites of 1% and more are within 10%.
fidelity() {
    "$tiercel" cc -O3 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -pthread -o app \
        "$tests/../../workloads/xsbench.c" -lm && at_rate 1 exact.profile &&
        at_rate 1/32 sampled.profile &&
        "$tiercel" profile diff --fidelity exact.profile sampled.profile &&
        "$tiercel" profile diff --fidelity --json exact.profile sampled.profile >found.json &&
        between accesses 2000000 1e9 && between misplaced 0 0.01 && between worst_error 0 0.10
}
check "fidelity of xsbench at 1/32" fidelity

# Loops that are phases by now have names, and a plan made of them is compiled in: the marks of
# these, and the temperatures of small objects. The program computes what it did before.
planned_steps() { # flags
    flags="$1 -fno-optimize-sibling-calls"
    # shellcheck disable=SC2086
    TIERCEL_CC=marks "$tiercel" cc $flags "$tests/steps.c" -o marked && has_checks marked &&
        record ./marked >marked.out && "$tiercel" profile show app.profile >shown && cat shown &&
        ! grep -q 'phase 0' shown &&
        grep -q 'use_first:[0-9]* .*marked' shown && grep -q 'use_second:[0-9]* .*marked' shown &&
        "$tiercel" plan app.profile --machine spr-cxl --fast 50% -o app.plan &&
        grep -q '"name": "use_second:' app.plan || return 1
    # shellcheck disable=SC2086
    TIERCEL_CC=apply TIERCEL_PLAN=app.plan "$tiercel" cc $flags "$tests/steps.c" -o applied &&
        ! has_checks applied && readelf -p .tiercel_applied applied >applied.txt &&
        cat applied.txt && grep -q 'mark use_first:' applied.txt &&
        grep -q 'mark use_second:' applied.txt && grep -q 'hot make_node steps.c:' applied.txt &&
        grep -q 'cold make_name steps.c:' applied.txt && ./applied >alone.out &&
        "$tiercel" run --machine spr-cxl --plan app.plan --json --output run.json -- ./applied \
            >hosted.out && cmp marked.out alone.out && cmp marked.out hosted.out
}
for flags in -O0 -O2 "-O2 -flto=thin" "-O2 -flto"; do
    check "a plan compiled in $flags" planned_steps "$flags"
done

# What LLVM's memory profiler recorded becomes a profile, and a plan, which is compiled in.
memory_profile() {
    rm -f memprof.profraw.* && flags="-g -fno-optimize-sibling-calls" &&
        $clang -O1 $flags -fmemory-profile -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer \
            -Wl,--build-id "$tests/steps.c" -o counted && ./counted >counted.out &&
        "$tiercel" profile import-memprof memprof.profraw.* --binary counted -o memprof.profile &&
        "$tiercel" profile show memprof.profile >shown && cat shown &&
        grep -q "make_node steps.c:" shown &&
        "$tiercel" plan memprof.profile --machine spr-cxl --fast 60% -o memprof.plan &&
        TIERCEL_CC=apply TIERCEL_PLAN=memprof.plan "$tiercel" cc -O1 $flags "$tests/steps.c" \
            -o applied && readelf -p .tiercel_applied applied >applied.txt && cat applied.txt &&
        grep -q 'hot make_node steps.c:' applied.txt && ./applied | cmp - counted.out
}
ls "$($clang -print-resource-dir)"/lib/*/libclang_rt.memprof* >/dev/null &&
    check "a memory profile of LLVM" memory_profile

# Neither a memory profile, nor a program.
no_memory_profile() {
    ! "$tiercel" profile import-memprof "$tests/steps.c" --binary /bin/true -o none.profile \
        2>refused && cat refused && [ ! -e none.profile ] &&
        ! "$tiercel" profile import-memprof "$tests/steps.c" --binary /nowhere -o none.profile \
            2>refused && grep -q /nowhere refused
}
check "no memory profile" no_memory_profile

verdict
