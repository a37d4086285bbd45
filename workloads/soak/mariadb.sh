# MariaDB: a new database, a server with threads, transactions of four clients at a time, a restart
. "${0%/*}/../programs/lib.sh"
need mariadbd mariadb mariadb-install-db
user=$(id -un)
mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal \
    --skip-test-db --user="$user" >/dev/null 2>&1
echo "install: status $?"
ask() { mariadb --no-defaults -S "$PWD/socket" -u root -N -B -e "$1" "${2:-}"; }
serve() {
    host_exec mariadbd --no-defaults --datadir="$PWD/data" --socket="$PWD/socket" --user="$user" \
        --skip-networking --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0 \
        --pid-file="$PWD/pid" 2>>log &
    server=$!
    wait_until ask "select 1"
}
finish() {
    ask shutdown
    wait "$server"
    echo "server: status $?"
}
work() {
    for i in $(seq $((60 * SIZE))); do
        echo "start transaction; update accounts set balance = balance - $i where id = $1;"
        echo "update accounts set balance = balance + $i where id = $(($1 % 4 + 1)); commit;"
    done | mariadb --no-defaults -S "$PWD/socket" -u root bank
}
serve
ask "create database bank"
ask "create table accounts (id int primary key, balance int) engine=innodb;
    insert into accounts select seq, 1000 from seq_1_to_4;
    create table words (n int primary key, word char(32), key (word)) engine=innodb;
    insert into words select seq, md5(seq) from seq_1_to_$((20000 * SIZE))" bank
for client in 1 2 3 4; do work $client & clients="${clients:-} $!"; done
# A transaction that loses a deadlock is not repeated: money is neither made nor lost.
wait $clients
ask "select sum(balance) from accounts" bank
ask "select md5(group_concat(word order by word)) from (select word from words limit 30000) w" bank
ask "select count(*), sum(a.n) from words a join words b on a.word = b.word where b.n % 3 = 0" bank
finish
serve
ask "select sum(balance) from accounts; check table words" bank
finish
