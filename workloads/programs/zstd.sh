# zstd -19 with two threads, and back; then xz
. "${0%/*}/lib.sh"
need zstd xz
text $((50000 * SIZE)) >data
host zstd -q -19 -T2 data -o data.zst
echo "status $?"
host zstd -q -d data.zst -o back
cmp data back && digest <data.zst
host xz -2 -k data
echo "status $?"
digest <data.xz
