#!/bin/sh
# what: tiercel run takes the emulator's samples by itself and finds what is hot
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# timed: yes
# limit: 180

tiercel doctor > doctor
contains "doctor knows where it is" "ok .*sampler-emulator .*timed guest" doctor

# 8 of 64 MiB get nine tenths of the accesses. Allocating them misses in another way than using
# them.
hotcold="hotcold objects=64 kib=1024 hot=8 accesses=12m"
succeeds "the program is right" tiercel run --fast 25% --tick 20ms --output summary -- $hotcold
show summary
contains "auto took the emulator" "samples .* by emulator: .* 0 lost" summary

# The table's rows end with the site's function; MiB or KiB is the first figure.
row() { grep -n "hotcold: make_$1" summary | cut -d: -f1; }
at_most "hot objects come before the cold ones" "$(row cold)" "$(row hot)"
contains "all of the hot ones fit" '\* *8MiB *8 *all .*make_hot' summary

# The program's first interval differs from the others.
tiercel run --fast 25% --tick 20ms --output summary --trigger llcmpi:threshold=0.1,intervals=1 \
    -- $hotcold
contains "misses per instruction are counted: their trigger fired" 'in [1-9][0-9]* decision' summary

# Only one process can sample at a time.
tiercel run --quiet --sampler emulator -- sh -c 'touch started; sleep 5' &
first=$!
wait_for 4 test -e started || not_ok "the first starts" "it did not"
tiercel run --quiet --sampler emulator -- true 2> refusal
contains "a second one is refused with the reason" "already samples the emulator" refusal
wait "$first"
succeeds "and has it when the first has gone" tiercel run --quiet --sampler emulator -- true
