# Signal all that is left of the run, say how many are alive after a moment.
# Set before: signal, reason, signal_script. A name that ends in * stands for all runs of that attempt that have
# begun and not ended; the daemons that an ended step left behind (a mount) are none of them.

# Adds to $left what is alive of the run in $dir.
stop_run() {
    # Before the lock is looked at: a start on its way here either holds the lock by then, or finds this.
    # (On a full disk it fails, as does every start.)
    if [ "$signal" != 0 ] && ! [ -e "$dir/stopped" ] && ! [ -e "$dir/exit" ]; then echo "$reason" >"$dir/stopped"; fi

    # While the runner waits for it, the program's session is its own, and finds what lost the environment (sudo).
    session=0 known=
    if held "$dir/lock" && [ -s "$dir/session" ]; then read -r session <"$dir/session"; fi
    if [ -s "$dir/signalled" ]; then read -r known <"$dir/signalled"; fi
    alive=$($sudo sh -c "$signal_script" tpux-signal "${dir#.tpux/runs/}" "$(pwd -P)" "$signal" "$session" $known)
    [ "$signal" = 0 ] || echo "$alive" >"$dir/signalled"
    set -- $alive
    # The runner needs a moment for the exit code.
    if [ $# = 0 ] && held "$dir/lock" && ! flock -s -w 1 8 8<"$dir/lock"; then set -- runner; fi
    left=$((left + $#))
}

umask 077
sudo= left=0
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi
case $id in
    *'*') for dir in $dir; do if [ -d "$dir" ] && ! [ -e "$dir/exit" ]; then stop_run; fi; done ;;
    *) mkdir -p "$dir" && stop_run ;;
esac
echo "tpux-run $left"
