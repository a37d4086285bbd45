# git: gc, log with diffs and fsck of a repository of 400 commits
. "${0%/*}/lib.sh"
need git
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init -q repository
text 3000 >base
awk -v count=$((400 * SIZE)) '
    { line[NR] = $0 }
    END { for (i = 1; i <= count; i++) {
        for (k = 0; k < 40; k++) line[(i * 61 + k * 7) % NR + 1] = "commit " i " line " k
        body = ""; for (n = 1; n <= NR; n++) body = body line[n] "\n"
        print "commit refs/heads/master\ncommitter A <a@example.org> " 1000000000 + i " +0000"
        print "data 6\nchange\nM 100644 inline file" i % 9 "\ndata " length(body) "\n" body
    } }' base | git -C repository fast-import --quiet
host git -C repository -c pack.threads=2 gc --quiet --aggressive
echo "status $?"
host git -C repository log --stat -p master | digest
host git -C repository fsck --full --no-progress
echo "status $?"
