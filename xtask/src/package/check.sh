# In a bare system: the package is installed, used by an ordinary user, and purged without a trace.
# It prints a line for each thing that was tried. In /given: the package.
fail() { echo "FAILED: $*"; exit 1; }
ok() { echo "ok: $*"; }

# What a purged package might have left: all files but the database of packages and the pages of
# the manual, which dpkg and mandb write themselves, and the homes of users.
everything() {
    find / -xdev \( -path /given -o -path /home -o -path /var/lib/dpkg -o -path /var/cache/man \) \
        -prune -o -printf '%M %u:%g %p %l\n' | LC_ALL=C sort
}
# Words, not a function: in the background that would be a shell between us and the command.
as_user='setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/home/user TERM=xterm'

useradd --uid 1000 --create-home --shell /bin/sh user
: >/var/log/dpkg.log
everything >/given/before

dpkg --install /given/*.deb
dpkg --verify tiercel
ok "installed, and its files are as they were packaged"

cd /home/user
$as_user mkdir -p run
program='my @all = map { "x" x 4096 } 1 .. 16384; my $n = 0;
    for my $turn (1 .. $ARGV[0]) { $n += length $all[rand @all] } print "read $n\n"'
printed=$($as_user tiercel run -- perl -e "$program" 100000) || fail "run ended with $?"
[ "$printed" = "read 409600000" ] || fail "the program printed: $printed"
status=0
$as_user tiercel run --quiet -- sh -c 'exit 7' || status=$?
[ $status = 7 ] || fail "run ended with $status where the program ended with 7"
$as_user tiercel run --json --output run/summary.json -- perl -e "$program" 1000000 >/dev/null
grep -q '"format":"tiercel-run' run/summary.json || fail "summary: $(head -c 400 run/summary.json)"
ok "tiercel run"

# A program that runs for as long as it is looked at. The keys of `top` come through a pipe, and
# what it draws goes into a file: words, with the terminal's controls between them.
$as_user mkfifo run/keys
$as_user tiercel run -- perl -e "$program" 1000000000 >/dev/null 2>&1 &
run=$!
exists() { kill -0 "$1" 2>/dev/null || fail "$2 ended early: $(cat run/screen 2>&1)"; }
until $as_user tiercel top --once 2>/dev/null | grep -q perl; do exists $run "the program"; done
$as_user script --quiet --flush --return --command 'stty rows 40 cols 150; exec tiercel top' \
    run/screen <run/keys >/dev/null &
top=$!
exec 3>run/keys
shows() { until grep -qs "$1" run/screen; do exists $top "tiercel top"; sleep 0.1; done; }
shows 'objects'
printf 'p' >&3
shows 'processes' && shows 'perl'
printf 'q' >&3
wait $top || fail "tiercel top ended with $?: $(cat run/screen)"
kill $run
wait $run || [ $? = 143 ] || fail "run ended with $?"
exec 3>&-
ok "tiercel top"

for page in tiercel tiercel-run; do
    $as_user man --pager=cat "$page" | grep -q '^NAME' || fail "no manual page $page"
done
ok "man tiercel"

# Where the sockets of a user without XDG_RUNTIME_DIR are, as long as a program runs.
rmdir /tmp/tiercel-1000
dpkg --purge tiercel
everything >/given/after
diff /given/before /given/after || fail "purging left or took files"
ok "purged without a trace"
