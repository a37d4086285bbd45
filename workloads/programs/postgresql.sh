# PostgreSQL: initdb, a server that forks for each connection, pgbench, a parallel query
. "${0%/*}/lib.sh"
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
[ -n "$bin" ] || { echo "missing: postgres" >&2; exit 77; }
folder=$(mktemp -d)
# It refuses root, and the daemon must run as the same user: all after "measure -- " runs as 65534,
# the unprivileged user, with the right to a userfaultfd, by which heaps move.
if [ "$(id -u)" = 0 ]; then
    as="setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace"
    chown 65534:65534 "$folder"
    unset XDG_RUNTIME_DIR
    case ${HOST:-} in
        *" -- "*) HOST="${HOST%% -- *} -- $as ${HOST#* -- }" ;;
        *) HOST="${HOST:-} $as" ;;
    esac
fi
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$folder"' EXIT
export PGHOST=$folder PGUSER=tester PGDATABASE=postgres
cd "$folder" || exit 1

host "$bin/initdb" -D "$folder/data" -U tester -A trust --no-sync --no-locale >/dev/null
echo "initdb: status $?"
serve() {
    host_exec "$bin/postgres" -D "$folder/data" -k "$folder" -h '' -F \
        -c work_mem=16MB -c min_parallel_table_scan_size=0 -c parallel_setup_cost=0 2>>"$folder/log" &
    server=$!
    wait_until "$bin/pg_isready" -q
}
finish() {
    "$bin/psql" -qAtX -c "checkpoint" && kill -INT "$(head -n 1 "$folder/data/postmaster.pid")"
    wait "$server"
    echo "server: status $?"
}
ask() { "$bin/psql" -qAtX -c "$1"; }
balances() {
    ask "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from
        pgbench_branches), (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from
        pgbench_history), (select count(*) from pgbench_history)"
}
serve
"$bin/pgbench" -i -q -s $((2 * SIZE)) 2>/dev/null
"$bin/pgbench" -n -c 8 -j 2 -t 100 >/dev/null 2>&1
echo "pgbench: status $?"
# A connection, and so a fork, for each transaction.
"$bin/pgbench" -n -C -c 4 -j 2 -t 40 >/dev/null 2>&1
echo "pgbench with forks: status $?"
balances
ask "create table numbers as select n, md5(n::text) as word from generate_series(1, 60000) n"
ask "create index on numbers (word); analyze numbers"
ask "select md5(string_agg(word, '' order by word)) from numbers"
ask "select count(*), sum(a.n) from numbers a join numbers b on a.word = b.word where b.n % 3 = 0"
finish
serve
balances
finish
