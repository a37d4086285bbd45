#!/bin/sh
# what: a daemon's pools of real nodes back vregions that move, and get all of it back
# machines: spr-cxl
# programs: tiercel libtiercel.so vmem_checker json
# limit: 180

# A pool fills as the daemon starts. A program that asks meanwhile waits for seconds at most, and
# then for none of the next ten.
cat > when_ready <<'END'
until [ "$(tiercel status --json | grep -o '"ready_bytes":201326592' | wc -l)" -eq 2 ]; do
    usleep 100000
done
exec vmem_checker 3 16 1
END
tiercel run --sampler none --pool 0=192MiB --pool 1=192MiB --json --output summary \
    -- sh when_ready > log 2> errors
equal "no write lost, no value torn" 0 $?
show errors
show log
succeeds "the summary is JSON" json "" < summary
grep -o '"pools":\[[^]]*' summary | tr '{' '\n' > pools
show pools
equal "both pools granted" 2 "$(grep -c '"granted":[1-9]' pools)"
equal "no pool is modelled" 0 "$(grep -c '"emulated":true' pools)"
