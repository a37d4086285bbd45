#!/bin/sh
# driver.sh: `tiercel cc`, `c++` and `fc` do what clang and flang do, and add the checks. In: the
# folder of what was built, the command. Out: a line for each failure, then `N passed, M failed`.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
at=$1/driver
tiercel=$2
clang=clang-19
rm -rf "$at"
mkdir -p "$at"
cd "$at" || exit 1
. "$tests/check.sh"

# Both print the same and end alike.
same() { # words
    "$tiercel" cc "$@" >ours.out 2>ours.err
    ours=$?
    $clang "$@" >theirs.out 2>theirs.err
    theirs=$?
    echo "status $ours, clang's $theirs"
    [ $ours = $theirs ] && cmp ours.out theirs.out && cmp ours.err theirs.err
}

# What is built has checks, and does what it does without them.
builds() { # verb, words
    verb=$1
    shift
    rm -f app
    warnings="-Wall -Wextra -Werror -pthread"
    [ "$verb" = fc ] && warnings=-Werror
    # shellcheck disable=SC2086
    "$tiercel" "$verb" $warnings "$@" -o app -lm && has_checks app &&
        ./app >app.out && cmp app.out "plain.$verb"
}

# Ends with a status, and says so.
refuses() { # status, text, command...
    want=$1 text=$2
    shift 2
    "$@" >refused.out 2>&1
    got=$?
    cat refused.out
    [ $got = "$want" ] && grep -q -- "$text" refused.out
}

$clang "$tests/digest.c" -o plain -pthread -lm && ./plain >plain.cc || exit 1
clang++-19 "$tests/digest.cc" -o plain -pthread && ./plain >plain.c++ || exit 1

for level in -O0 -O1 -O2 -O3; do
    for lto in "" -flto=thin -flto; do
        # shellcheck disable=SC2086
        check "cc $level $lto" builds cc $level $lto "$tests/digest.c"
        # shellcheck disable=SC2086
        check "c++ $level $lto" builds c++ $level $lto "$tests/digest.cc"
    done
done

# Sums are in another order at other levels.
fortran() { # flags
    # shellcheck disable=SC2086
    flang-new-19 $1 "$tests/digest.f90" -o plain && ./plain >plain.fc &&
        builds fc $1 "$tests/digest.f90"
}
for flags in -O0 -O1 -O2 -O3 "-O2 -flto" "-O2 -flto=thin"; do
    check "fc $flags" fortran "$flags"
done

# Each of the five arrays begins at an OS page, and is 8 bytes times 200,000.
aligned() {
    nm -S app | grep -i ' [bd] ' | awk '$2 == "0000000000186a00"' >arrays
    cat arrays
    [ "$(wc -l <arrays)" = 5 ] && [ "$(cut -c14-16 arrays | sort -u)" = 000 ]
}
fortran -O2 >log 2>&1
check "large static data begins at OS pages" aligned

for words in --version -v -dumpmachine -print-prog-name=ld "-E $tests/digest.c" \
    "-fsyntax-only $tests/digest.c" "" "-c" "-c nowhere.c" "-Wall -c -o x.o" "-MM $tests/lines.c" \
    "-no-such-option $tests/digest.c" "-print-search-dirs" "-dM -E -xc /dev/null"; do
    # shellcheck disable=SC2086
    check "as clang: $words" same $words
done

in_steps() {
    "$tiercel" cc -O2 -c "$tests/digest.c" -o digest.o && has_checks digest.o &&
        "$tiercel" cc digest.o -o app -pthread -lm && ./app >app.out && cmp app.out plain.cc
}
check "compiled, then linked" in_steps

several_inputs() {
    $clang -O1 -c "$tests/lines.c" -o lines.o && "$tiercel" cc -O2 lines.o "$tests/patterns.c" \
        -o app && ./app
}
check "several inputs" several_inputs

response_file() {
    printf '%s\n' -O2 "\"$tests/digest.c\"" -o app -pthread -lm >words
    "$tiercel" cc @words && has_checks app && ./app >app.out && cmp app.out plain.cc
}
check "@file" response_file

from_input() { "$tiercel" cc -O1 -xc - -o app -pthread -lm <"$tests/digest.c" && has_checks app; }
check "from standard input" from_input

shared() {
    "$tiercel" cc -O2 -shared -fPIC "$tests/patterns.c" -o libpatterns.so &&
        has_checks libpatterns.so && $clang -rdynamic -O1 "$tests/lines.c" -o app -L. -lpatterns \
        -Wl,-rpath,"$at" && ./app
}
check "a shared library" shared

# Where it goes to another folder, it does so alone.
in_own_shell() { ("$@"); }

# As autoconf, libtool and Make files call it.
depends() {
    "$tiercel" cc -O2 -pipe -MMD -MP -MF patterns.d -MT patterns.o -Wp,-D_FORTIFY_SOURCE=2 \
        -c "$tests/patterns.c" -o patterns.o && has_checks patterns.o &&
        tr -d '\\\n' <patterns.d | grep -q '^patterns.o:.*patterns.h'
}
check "-MMD, -pipe, -Wp" depends

configured() {
    mkdir -p configured && cat >configured/configure.ac <<'END'
AC_INIT([two], [1])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
AC_CHECK_FUNCS([mmap])
AC_CHECK_SIZEOF([long])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
END
    cat >configured/Makefile.am <<'END'
bin_PROGRAMS = one
one_SOURCES = one.c
one_LDADD = -lpthread -lm
END
    cp "$tests/digest.c" configured/one.c && cd configured && autoreconf -i &&
        ./configure CC="$tiercel cc" && grep -q 'SIZEOF_LONG 8' config.log && make &&
        has_checks one && ./one | cmp - ../plain.cc
}
command -v autoreconf >/dev/null && command -v automake >/dev/null &&
    check "autoconf, automake" in_own_shell configured

archive() {
    "$tiercel" cc -O2 -flto -c "$tests/digest.c" -o digest.o && rm -f libdigest.a &&
        llvm-ar-19 rcs libdigest.a digest.o &&
        "$tiercel" cc -O2 -flto -Wl,--whole-archive libdigest.a -Wl,--no-whole-archive -o app \
            -pthread -lm && has_checks app && ./app >app.out && cmp app.out plain.cc
}
check "an archive of LTO" archive

check "static" builds cc -O2 -static "$tests/digest.c"
check "lld without LTO" builds cc -O2 -fuse-ld=lld "$tests/digest.c"

by_link() {
    ln -sf "$tiercel" tiercel-cc && ln -sf "$tiercel" tiercel-c++ &&
        ./tiercel-cc -c "$tests/patterns.c" -o patterns.o && has_checks patterns.o &&
        ./tiercel-c++ --version | grep -q 'clang version 19'
}
check "links to the command" by_link

off() {
    TIERCEL_CC=off "$tiercel" cc -O2 "$tests/digest.c" -o app -pthread -lm && ! has_checks app
}
check "TIERCEL_CC=off" off

cmake_project() {
    mkdir -p project && cp "$tests/digest.c" project/one.c && cp "$tests/digest.cc" project/two.cc
    cat >project/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.13)
project(two C CXX)
find_package(Threads REQUIRED)
add_library(part SHARED one.c)
add_executable(one one.c)
target_link_libraries(one Threads::Threads m)
target_link_libraries(part Threads::Threads m)
add_executable(two two.cc)
target_link_libraries(two Threads::Threads)
END
    cmake -S project -B project/build && cmake --build project/build &&
        has_checks project/build/one && has_checks project/build/libpart.so &&
        project/build/one | cmp - plain.cc && project/build/two | cmp - plain.c++
}
export CC="$at/tiercel-cc" CXX="$at/tiercel-c++"
check "CMake" cmake_project

check "-flto with another linker" refuses 125 "-fuse-ld=lld" "$tiercel" cc -flto -fuse-ld=bfd \
    "$tests/digest.c"
check "an unknown mode" refuses 125 "must be profile, marks, apply or off" env TIERCEL_CC=x \
    "$tiercel" cc -c a.c
check "no clang 19" refuses 125 "apt install clang-19" env PATH=/nowhere "$tiercel" cc -c a.c
check "apply without a plan" refuses 125 "needs the plan" env TIERCEL_CC=apply "$tiercel" cc \
    -c a.c
check "apply of no file" refuses 125 "nowhere" env TIERCEL_CC=apply TIERCEL_PLAN=/nowhere \
    "$tiercel" cc -c a.c
echo '{"format":"tiercel plan","version":3' >damaged.plan
check "apply of a damaged plan" refuses 125 "the plan is damaged" env TIERCEL_CC=apply \
    TIERCEL_PLAN=damaged.plan "$tiercel" cc -c a.c
check "apply of something else" refuses 125 "is not a plan" env TIERCEL_CC=apply \
    TIERCEL_PLAN="$tests/digest.c" "$tiercel" cc -c a.c
marked_digests() {
    for lto in "" -flto=thin -flto; do
        # shellcheck disable=SC2086
        TIERCEL_CC=marks "$tiercel" cc -O2 $lto "$tests/digest.c" -o app -pthread -lm &&
            has_checks app && nm app | grep -q tiercel_mark_enter && ./app | cmp - plain.cc &&
            TIERCEL_CC=marks "$tiercel" c++ -O2 $lto "$tests/digest.cc" -o app -pthread &&
            nm app | grep -q tiercel_mark_enter && ./app | cmp - plain.c++ || return 1
    done
    flang-new-19 -O2 "$tests/digest.f90" -o plain && ./plain >plain.fc &&
        TIERCEL_CC=marks "$tiercel" fc -O2 "$tests/digest.f90" -o app && ./app | cmp - plain.fc
}
check "marks" marked_digests
alone() { cp "$tiercel" alone && refuses 125 "cargo xtask compiler" ./alone cc -c a.c; }
check "no plug-in" alone

verdict
