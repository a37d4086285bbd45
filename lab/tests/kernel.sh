#!/bin/sh
# what: the guest's kernel has what samplers and movers stand on
# machines: two-socket-optane
# programs: kernel
# short: yes

kernel
