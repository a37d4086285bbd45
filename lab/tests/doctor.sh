#!/bin/sh
# what: doctor sees the kernel's own balancing switched on and off
# machines: two-socket-optane
# programs: tiercel
# short: yes

tiercel doctor > off
echo 1 > /proc/sys/kernel/numa_balancing
tiercel doctor > on
echo 0 > /proc/sys/kernel/numa_balancing
contains "it warns while the kernel moves memory too" "numa_balancing=0" on
if grep -q "numa_balancing=0" off; then
    cat off
    not_ok "it is silent when it is off" "it still gives the remedy"
else
    ok "it is silent when it is off"
fi
contains "real moves work here" "move-pages *works" off
