# Wait until a preemption of this machine is announced; record that, and end the run: SIGTERM, after $grace SIGKILL.
# The runner starts it beside the program, in a session of its own, which the runner kills at the end.
# Set before: notice (a command that exits with 0 after the announcement), grace, stop_script. $1: the runner's pid.

# The shutdown of the machine sends SIGTERM to every process.
trap : HUP INT QUIT TERM
runner=$1 pause=0

# Set now to the seconds since the machine was booted.
read_now() {
    read -r now _ </proc/uptime
    now=${now%.*}
}

# Send $1 to the processes of the run; print how many are alive after a moment.
stop() {
    signal=$1 sh -c "$stop_script" | sed -n 's/^tpux-run //p'
}

while :; do
    read_now
    since=$now
    text=$(sh -c "$notice" </dev/null 2>/dev/null) && break
    kill -0 "$runner" 2>/dev/null || exit 0
    # A command that the shutdown has killed is run again at once, one that always fails ever more rarely.
    read_now
    [ $((now - since)) -lt 60 ] || pause=0
    sleep $pause
    pause=$((pause < 32 ? pause * 2 + 1 : 60))
done

# It says nothing about a program that had ended well before, without a signal from the machine.
if [ -e "$dir/exit" ]; then
    read -r code _ <"$dir/exit"
    [ "$code" != 0 ] || [ -e "$dir/notice" ] || exit 0
fi
printf 'notice %-240.240s\n' "$(printf %s "$text" | tr '\n\t' '  ')" 1<>"$dir/notice.new"
mv -f "$dir/notice.new" "$dir/notice"
[ -e "$dir/exit" ] && exit 0

stop TERM >/dev/null
read_now
deadline=$((now + grace))
while [ -d "$dir" ] && [ "$(stop 0)" != 0 ]; do
    sleep 1
    read_now
    [ "$now" -lt "$deadline" ] || stop KILL >/dev/null
done
