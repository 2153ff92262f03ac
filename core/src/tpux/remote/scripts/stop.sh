# Send a signal to the processes of the run, and print how many are alive after a moment.
# Set before: signal, reason, signal_script. The signal NONE only records the reason. A name that ends in * stands for
# all runs of that attempt that were started and have not ended; the daemons that an ended step left behind (a mount's)
# are not among them.

# Add the number of live processes of the run in $dir to $left.
stop_run() {
    # Before the lock is checked: a concurrent start either holds the lock by then, or finds this file.
    # (On a full disk this fails, and so does every start.)
    if [ "$signal" != 0 ] && ! [ -e "$dir/stopped" ] && ! [ -e "$dir/exit" ]; then echo "$reason" >"$dir/stopped"; fi
    if [ "$signal" = NONE ]; then return; fi

    # The supervisor and the watcher for notices may do this at the same time: SIGTERM is sent once all the same.
    exec 7<"$dir"
    flock -w 10 7

    # While the runner lives, the session is the program's own, and finds processes without the environment (sudo).
    session=0 known= cgroup=
    if held "$dir/lock" && [ -s "$dir/session" ]; then read -r session <"$dir/session"; fi
    if [ -s "$dir/signalled" ]; then read -r known <"$dir/signalled"; fi
    if [ -s "$dir/cgroup" ]; then read -r cgroup <"$dir/cgroup"; fi
    set -- "${dir#.tpux/runs/}" "$PWD" "$signal" "$session" "$cgroup" $known
    if [ "$sudo" ]; then
        alive=$($sudo sh -c "$signal_script" tpux-signal "$@")
    else
        signal_here "$@" >/dev/null
    fi
    [ "$signal" = 0 ] || echo "$alive" >"$dir/signalled"
    exec 7>&-
    set -- $alive
    # The runner needs a moment to record the exit code.
    if [ $# = 0 ] && held "$dir/lock" && ! flock -s -w 1 8 8<"$dir/lock"; then set -- runner; fi
    left=$((left + $#))
    if [ $# = 0 ] && [ -d "$cgroup" ]; then $sudo find "$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null; fi
}

# Without a process; sets alive to what the script prints.
signal_here() { eval "$signal_script"; }

umask 077
cd -P .
sudo= left=0
read_status Uid
if [ "${value%%[!0-9]*}" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi
case $id in
    *'*') for dir in $dir; do if [ -d "$dir" ] && ! [ -e "$dir/exit" ]; then stop_run; fi; done ;;
    *) if [ -d "$dir" ] || mkdir -p "$dir"; then stop_run; fi ;;
esac
echo "tpux-run $left"
