#!/bin/sh
# what: strict accounting, a control group's limit, set-user-id: a program ends as without Tiercel
# machines: spr-cxl
# programs: tiercel libtiercel.so kv asuser
# limit: 100
# short: yes

small="kv mib=4 operations=5k"
large="kv mib=128 operations=5k"

# ends WHAT STATUS COMMAND...: alone and hosted
ends() {
    what=$1
    status=$2
    shift 2
    "$@" > alone 2> errors
    equal "alone: $what" "$status" $?
    tiercel run --fast 25% --quiet -- "$@" > hosted 2> errors
    equal "hosted: $what" "$status" $?
    show errors
}

# Only what is touched may count; reservations must not.
old=$(cat /proc/sys/vm/overcommit_memory)
echo 2 > /proc/sys/vm/overcommit_memory
ends "a program runs under strict accounting" 0 $small
echo 300000 > /proc/sys/vm/overcommit_kbytes
ends "one that asks for more than there is gets no memory" 3 kv mib=512 operations=1k
echo 0 > /proc/sys/vm/overcommit_kbytes
echo 50 > /proc/sys/vm/overcommit_ratio
echo "$old" > /proc/sys/vm/overcommit_memory

# The program runs in a group of its own below the test's; a process of it is killed at 64 MiB.
group=/sys/fs/cgroup/limits
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo 64M > $group/memory.max
echo 1 > $group/memory.oom.group
limited='echo $$ > '$group/cgroup.procs' && exec "$@"'
ends "a program fits a group's limit" 0 sh -c "$limited" sh $small
ends "one that does not is killed, and no more than it" 137 sh -c "$limited" sh $large
rmdir $group

# A copy that the other user may read.
cp "$(tiercel run --quiet -- sh -c 'echo $LD_PRELOAD')" library.so

# loaded PROGRAM: whether our library is in it when another user runs it
loaded() {
    asuser 1000 env LD_PRELOAD=/tmp/library.so "./$1" mib=4 operations=100m > out &
    wait_for 10 grep -q "/tmp/$1" /proc/$!/maps
    wait_for 10 grep -q libc.so /proc/$!/maps # the loader takes ours first
    if grep -q library.so /proc/$!/maps; then echo yes; else echo no; fi
    kill $!
}

# The loader leaves our library out of a set-user-id program, which then runs alone.
cp "$(command -v kv)" plain
cp "$(command -v kv)" secure
chmod 4755 secure
equal "our library is in a program of another user" yes "$(loaded plain)"
equal "and not in a set-user-id one" no "$(loaded secure)"
ends "which runs all the same" 0 asuser 1000 ./secure mib=4 operations=5k
