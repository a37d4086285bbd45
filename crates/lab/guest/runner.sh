# Runs one test. In: its name, its time limit in seconds. Out: `lab-begin NAME`, what it prints,
# `lab-end STATUS`. Whatever the test leaves running is killed, and its files in /tmp are removed.
name=$1
limit=$2
group=/sys/fs/cgroup/lab-test
cd /tmp || exit
# No test begins with what another one's runs learned.
unset HOME XDG_DATA_HOME
rm -rf /tmp/* /dev/shm/*
mkdir -p "$group"
echo "lab-begin $name"
(
    # $$ is the runner's own number in a subshell; the group wants this one.
    sh -c 'echo $PPID' > "$group/cgroup.procs"
    exec timeout -s KILL "$limit" sh -c '. /lab/prelude.sh; . "$0"' "/lab/tests/$name" 2>&1
)
status=$?
echo
echo "lab-end $status"
echo 1 > "$group/cgroup.kill"
while [ -s "$group/cgroup.procs" ]; do usleep 10000; done
rmdir "$group"
exit 0
