# memcached with four threads: 20,000 values of many sizes written, read back and evicted
. "${0%/*}/lib.sh"
need memcached $PYTHON
host_exec memcached -A -s "$PWD/socket" -t 4 -m 64 -u "$(id -un)" &
server=$!
wait_until test -S socket
$PYTHON - $((20000 * SIZE)) <<'PY'
import hashlib, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect("socket")
stream = connection.makefile("rwb")
seen = hashlib.sha256()
count = int(sys.argv[1])
for n in range(count):
    value = (b"%d-" % n) * (n % 700 + 1)
    stream.write(b"set k%d 0 0 %d\r\n%s\r\n" % (n, len(value), value))
    stream.flush()
    assert stream.readline() == b"STORED\r\n"
for n in range(count - 2000, count):
    stream.write(b"get k%d\r\n" % n)
    stream.flush()
    line = stream.readline()
    seen.update(line)
    seen.update(stream.read(int(line.split()[3]) + 2))
    assert stream.readline() == b"END\r\n"
print(seen.hexdigest())
stream.write(b"shutdown\r\n")
stream.flush()
PY
wait "$server"
echo "status $?"
