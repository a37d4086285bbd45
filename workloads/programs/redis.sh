# redis-server under redis-benchmark, with BGSAVE and an AOF rewrite while it writes, and a restart
. "${0%/*}/lib.sh"
need redis-server redis-cli redis-benchmark
answers() { [ "$(redis-cli -s socket ping 2>/dev/null)" = PONG ]; }
serve() {
    host_exec redis-server --port 0 --unixsocket "$PWD/socket" --save '' --dbfilename dump.rdb \
        --dir "$PWD" --daemonize no --logfile server.log &
    server=$!
    wait_until answers
}
ask() { redis-cli -s socket "$@"; }
last_save() { [ "$(ask lastsave)" != "$saved" ]; }
serve
redis-benchmark -s socket -q -n $((60000 * SIZE)) -r 20000 -t set,lpush,hset -d 200 >/dev/null
text 20000 | awk '{ print "SET", "key:" $1, $4 }' | ask --pipe | tail -n 1
saved=$(ask lastsave)
sleep 1.1 # lastsave counts seconds
ask bgsave
redis-benchmark -s socket -q -n $((40000 * SIZE)) -r 20000 -t get,set,incr -d 200 >/dev/null
wait_until last_save
rewritten() { ask info persistence | grep -q aof_rewrite_in_progress:0; }
ask config set appendonly yes
redis-benchmark -s socket -q -n $((20000 * SIZE)) -r 20000 -t set,incr -d 200 >/dev/null
wait_until rewritten
ask info persistence | tr -d '\r' | grep aof_last_bgrewrite_status
ask mget key:1 key:77 key:19999
ask --raw dbsize | awk '{ print ($1 > 20000) ? "keys are there" : "keys are missing" }'
ask shutdown nosave
wait "$server"
echo "status $?"
serve
ask mget key:1 key:77 key:19999
ask shutdown nosave
wait "$server"
echo "status $?"
