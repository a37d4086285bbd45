# redis: make with its own jemalloc, Lua and hiredis, and its whole test suite
. "${0%/*}/lib.sh"
make -j"$JOBS" CC="$CC"
has_checks src/redis-server src/redis-cli src/redis-benchmark
# How long a defragmentation may take is for idle machines.
./runtest --clients "$JOBS" --skiptest '/^Active defrag.*'
