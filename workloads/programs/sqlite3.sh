# sqlite3: a table of 200,000 rows, two indices, joins, a vacuum
. "${0%/*}/lib.sh"
need sqlite3
text $((200000 * SIZE)) >rows
cat >queries <<'SQL'
create table t(id integer primary key, small integer, word text, big integer);
.separator " "
.import rows t
create index by_word on t(word, small);
create index by_big on t(big);
select word, count(*), sum(small) from t group by word order by 2 desc, 1 limit 5;
select count(*) from t a join t b on a.word = b.word and b.small = a.small where a.id % 97 = 0;
update t set word = word || small where big % 3 = 0;
delete from t where big % 5 = 0;
select count(*), sum(length(word)), max(big) from t;
vacuum;
pragma integrity_check;
SQL
host sqlite3 base.db <queries
echo "status $?"
