# bash with job control: background jobs, stop and continue, traps, pipelines, substitutions
. "${0%/*}/lib.sh"
cat >script <<'SH'
set -m
trap 'echo caught' USR1
sleep 1000 &
sleeper=$!
kill -STOP %1
wait_stopped() { until [ "$(jobs %1 | awk '{ print $2 }')" = Stopped ]; do jobs >/dev/null; done; }
wait_stopped
jobs %1 | awk '{ print $2 }'
bg %1 >/dev/null
kill -TERM %1
wait $sleeper 2>/dev/null # by number: bash may have reported the job and dropped it already
echo "killed $?"
kill -USR1 $$
for i in 1 2 3; do (exit $i) & pids="$pids $!"; done
for pid in $pids; do wait $pid; echo "exit $?"; done
seq 20000 | sort -rn | head -n 3 | paste -sd' '
text=
for i in {1..3000}; do text+="$i,"; done
echo "${#text} $(echo "$text" | tr , '\n' | wc -l)"
coproc cat; echo through >&"${COPROC[1]}"; read -r back <&"${COPROC[0]}"; echo "$back"
exec bash -c 'echo replaced; exit 9'
SH
host bash script
echo "status $?"
