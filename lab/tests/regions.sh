#!/bin/sh
# what: regions of interest are the command's, not those of a recording before it or of Tiercel
# machines: spr-cxl
# programs: tiercel libtiercel.so hotcold
# timed: yes
# regions: 1
# limit: 120

set -- objects=8 kib=256 hot=2 accesses=20k
succeeds "a program is recorded, which marks a region, after the speeds were measured" \
    tiercel record --quiet -o p.profile -- hotcold "$@"
succeeds "the measurement is in the profile" grep -q move p.profile/manifest.json
# As the bench does when the run itself begins.
/lab/begin
succeeds "a plan is made for it" tiercel plan p.profile --fast 50% -o p.plan
succeeds "and it runs by the plan" \
    tiercel run --plan p.plan --sampler none -- hotcold "$@"
