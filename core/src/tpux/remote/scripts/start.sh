# Start the run unless it was started before, wait briefly for its end, and report its state.
# Set before: offset, chunk_size, wait, runner, watcher (empty if there is none), keep; program and script, or, if they
# may be long or secret, program_size and script_size. Then stdin has the program, the script and a last line.
set -e
if ! command -v flock || ! command -v setsid; then
    echo 'flock and setsid are required (package util-linux)' >&2
    exit 69
fi >/dev/null
mask=022 # the kernel's line and not `umask`, which would cost a process
while read -r name value; do
    if [ "$name" = Umask: ]; then mask=$value && break; fi
done </proc/self/status
umask 077
mkdir -p "$dir"
program_file=program.$$

# Input is read before the lock is taken: a connection that hangs half-way blocks nothing.
if [ "$program_size" ]; then
    trap 'rm -f "$dir/$program_file" "$dir/script.$$"' EXIT
    head -c "$program_size" >"$dir/$program_file"
    head -c "$script_size" >"$dir/script.$$"
    read -r last || :
    if [ "$last" != tpux-end ]; then
        echo 'the connection ended before the whole script was received' >&2
        exit 74
    fi
fi

exec 9>>"$dir/lock"
if flock -w "$wait" 9 && ! [ -e "$dir/exit" ] && ! [ -e "$dir/started" ] && ! [ -e "$dir/stopped" ]; then
    if [ "$program_size" ]; then
        mv -f "$dir/script.$$" "$dir/script"
    else
        printf '%s' "$script" >"$dir/script"
        printf '%s' "$program" >"$dir/$program_file"
    fi
    printf '%s' "$runner" >"$dir/runner"
    if [ -n "$watcher" ]; then
        printf '%s' "$watcher" >"$dir/watcher"
        printf '%250s\n' '' >"$dir/notice.new"
    fi
    : >>"$dir/output"
    # Space for the exit code and its time, and above for a notice, is reserved now: the program may fill the disk.
    printf '%-24s\n' '' >"$dir/ending"
    echo "$boot $uptime" >"$dir/started" || { rm -f "$dir/started"; exit 74; }
    trap - EXIT
    umask "$mask"
    # The runner inherits the lock, so there is no moment without a holder. `--fork` and not `&`: a shell
    # makes what it starts with `&` ignore SIGINT and SIGQUIT, and the program would inherit that.
    setsid --fork sh "$dir/runner" "$program_file" "$keep" "$program_size" </dev/null >/dev/null 2>&1
    exec 9>&-
    flock -s -w "$wait" 8 8<"$dir/lock" || :
fi
exec 9>&-
set +e
report
