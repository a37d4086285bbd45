# sqlite3: autoconf and libtool, its test fixture in Tcl, the tests of "veryquick"
. "${0%/*}/lib.sh"
mkdir built
cd built
../configure CC="$CC"
make -j"$JOBS"
has_checks sqlite3 .libs/libsqlite3.so
make -j"$JOBS" testfixture
has_checks testfixture
# They refuse root, whom no permission stops.
as_user ./testfixture ../test/veryquick.test

cat >queries <<'SQL'
create table t(id integer primary key, word text, big integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
    insert into t select i, 'word' || (i * 7919 % 977), i * 1103515245 % 2147483648 from n;
create index by_word on t(word, big);
select word, count(*), sum(big) from t group by word order by 2 desc, 1 limit 5;
pragma integrity_check;
SQL
./sqlite3 :memory: <queries >answers
records ./sqlite3 :memory: <queries
cmp answers recorded
