# tmux: a server that goes into the background, a session with a shell, its screen read back
. "${0%/*}/lib.sh"
need tmux
export TERM=screen HOME="$PWD"
on() { tmux -S "$PWD/socket" -f /dev/null "$@"; }
shown() { on capture-pane -p -t one | grep -q "sum 2001000"; }
host tmux -S "$PWD/socket" -f /dev/null new-session -d -s one -x 80 -y 24 'bash --norc --noprofile'
echo "status $?"
on send-keys -t one 'PS1=; clear; echo sum $(seq 2000 | awk "{ s += \$1 } END { print s }")' Enter
wait_until shown
on split-window -t one 'sleep 100'
on list-panes -t one | wc -l
on capture-pane -p -t one.0 | grep '^sum'
on kill-server
gone() { ! on list-sessions; }
wait_until gone
echo done
