#!/bin/sh
# what: vregions that are filled when they are touched get memory of the node that touches them
# machines: two-socket-optane
# programs: libtiercel.so vmem_fault
# limit: 60

LD_PRELOAD=/usr/lib/tiercel/libtiercel.so vmem_fault where > log 2> errors
equal "each CPU touches, and memory comes from its node" 0 $?
show log
show errors
contains "on the node of the CPU that touches, on both sockets" 'from 2 nodes with CPUs' log
