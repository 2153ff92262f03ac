# Start the run unless it was started before, wait briefly for its end, and report its state.
# Set before: offset, chunk_size, wait, program, script, timed (empty for a step of a module), runner, watcher (empty if
# there is none), keep.
set -e
if ! command -v flock || ! command -v setsid; then
    echo 'flock and setsid are required (package util-linux)' >&2
    exit 69
fi >/dev/null
mask=022
if read_status Umask; then mask=$value; fi # $(umask) would cost a process
umask 077
mkdir -p "$dir"
program_file=program.$$

phase=
exec 9>>"$dir/lock"
if flock -w "$wait" 9 && ! [ -e "$dir/exit" ] && ! [ -e "$dir/started" ] && ! [ -e "$dir/stopped" ]; then
    trap 'rm -f "$dir/$program_file"' EXIT
    printf '%s' "$script" >"$dir/script"
    printf '%s' "$program" >"$dir/$program_file"
    printf '%s' "$runner" >"$dir/runner"
    if [ -n "$watcher" ]; then
        printf '%s' "$watcher" >"$dir/watcher"
        printf '%250s\n' '' >"$dir/notice.new"
    fi
    : >>"$dir/output"
    # Space for the exit code and its time, the disks, and above for a notice, is reserved now: the program may fill the disk.
    printf '%-24s\n' '' >"$dir/ending"
    printf '%-2047s\n' '' >"$dir/disks"
    echo "$boot $uptime" >"$dir/started" || { rm -f "$dir/started"; exit 74; }
    trap - EXIT
    umask "$mask"
    # The runner inherits the lock, so there is no moment without a holder. `--fork` and not `&`: a shell
    # makes what it starts with `&` ignore SIGINT and SIGQUIT, and the program would inherit that.
    setsid --fork sh "$dir/runner" "$program_file" "$keep" "$timed" </dev/null >/dev/null 2>&1
    exec 9>&-
    flock -s -w "$wait" 8 8<"$dir/lock" || phase=running
fi
exec 9>&-
set +e
report $phase
