# nginx: a master and two workers serve files, reload while they serve, and quit
. "${0%/*}/../programs/lib.sh"
need nginx curl
mkdir files logs
text 20000 >files/large
for i in $(seq 50); do text "$i" >"files/$i"; done
chmod -R go+rX . # its workers are another user's
cat >nginx.conf <<CONF
daemon off;
worker_processes 2;
pid $PWD/pid;
error_log $PWD/logs/error;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path $PWD/b; proxy_temp_path $PWD/p; fastcgi_temp_path $PWD/f;
    uwsgi_temp_path $PWD/u; scgi_temp_path $PWD/s;
    gzip on; gzip_min_length 1; gzip_types *;
    server { listen unix:$PWD/socket; root $PWD/files; }
}
CONF
ask() { curl -s --compressed --unix-socket "$PWD/socket" "http://localhost/$1"; }
host_exec nginx -p "$PWD" -c "$PWD/nginx.conf" 2>logs/stderr &
server=$!
wait_until ask 1
for round in $(seq $((4 * SIZE))); do
    for i in $(seq 50) large; do ask "$i"; done | digest
    kill -HUP "$server"
done
ask missing | grep -c '404 Not Found'
kill -QUIT "$server"
wait "$server"
echo "status $?"
