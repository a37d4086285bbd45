# zstd: command and libraries by make, its tests, and the command again with LTO
. "${0%/*}/lib.sh"
make -j"$JOBS" CC="$CC"
has_checks programs/zstd lib/libzstd.so
make CC="$CC" check
make -C tests CC="$CC" test-pool test-invalidDictionaries test-legacy
make -C tests CC="$CC" test-fuzzer FUZZERTEST=-T20s
make -C tests CC="$CC" test-zstream ZSTREAM_TESTTIME=-T20s

tests/datagen -g20MB >data
records programs/zstd -q -f -9 data -o data.zst
programs/zstd -q -d -c data.zst | cmp - data

make -C programs -j"$JOBS" CC="$CC" MOREFLAGS="-flto=thin -pipe" zstd
has_checks programs/zstd
programs/zstd -q -d -c data.zst | cmp - data
