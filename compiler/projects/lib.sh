# lib.sh: what the scripts beside it share. Each is run by bash in a copy of a project's sources,
# builds it with CC and CXX, and runs its tests; `cargo xtask compiler --real` does both. In: CC,
# CXX, TIERCEL (the command), JOBS. Out: an unsuccessful status with the first thing that failed.
set -eu
export LC_ALL=C

# file...: they were compiled with checks
has_checks() {
    for built in "$@"; do
        nm "$built" | grep -q ' tiercel_probe_limit$' || {
            echo "$built has no checks"
            return 1
        }
    done
}

# command...: a recording of it has sites with misses
records() {
    "$TIERCEL" record --quiet -o app.profile --sampler compiled --caches 32K/8,256K/8,1M/16 -- \
        "$@" >recorded
    "$TIERCEL" profile show app.profile
    "$TIERCEL" profile show --json app.profile | grep -qE '"(reads|writes)":[1-9]'
}

# The user of files whose owner has no number here.
USER_ID=65534

# command...: runs it as that user where root calls, who then owns the working folder
as_user() {
    if [ "$(id -u)" = 0 ]; then
        chown -R "$USER_ID" .
        setpriv --reuid="$USER_ID" --clear-groups "$@"
    else
        "$@"
    fi
}
