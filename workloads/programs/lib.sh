# Functions that all scripts share. Each script, run by bash in an empty folder, makes its input and
# then runs a real program behind `host`; what it prints on stdout must be the same with and without
# Tiercel. `cargo xtask real-programs` compares; `cargo xtask bench overhead` measures.
#
#   HOST   command that goes before the hosted one, empty for a plain run
#   SIZE   how much work: 1 takes about a second
set -u
SIZE=${SIZE:-1}
export LC_ALL=C TZ=UTC0 PYTHONHASHSEED=0
PYTHON=/usr/bin/python3

host() {
    # shellcheck disable=SC2086 # HOST is several words
    ${HOST:-} "$@"
}

# The same for `host_exec ... &`: no shell stays between, so that $! is the hosted process.
host_exec() {
    # shellcheck disable=SC2086
    exec ${HOST:-} "$@"
}

# Ends with 77 and a message when a command is missing: see setup/packages.txt.
need() {
    for command in "$@"; do
        command -v "$command" >/dev/null || { echo "missing: $command" >&2; exit 77; }
    done
}

# Waits until a command succeeds, two minutes at most, which is long on a busy machine too.
wait_until() {
    for _ in $(seq 2400); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    echo "still fails after two minutes: $*"
    return 1
}

# N lines of words and numbers, the same every time.
text() {
    awk -v lines="$1" 'BEGIN { for (i = 0; i < lines; i++) {
        x = (x * 1103515245 + 12345) % 2147483648
        print i, x % 1000, "word" x % 977, x } }'
}

# What is still running when a script ends must not outlive it.
trap 'kill $(jobs -p) 2>/dev/null' EXIT

digest() { sha256sum | cut -d' ' -f1; }
