# The beginning of every script here. Set before it: id, of a run or of a job.
# Paths are relative to the home directory, in which a transport starts every script. Required: a POSIX shell,
# coreutils, grep, and flock and setsid of util-linux.
dir=.tpux/runs/$id
read -r boot </proc/sys/kernel/random/boot_id
read -r uptime _ </proc/uptime

# Set value to what the kernel says about this shell in the line $1, without a process; false if it says nothing.
read_status() {
    while read -r field value; do
        if [ "$field" = "$1:" ]; then return; fi
    done </proc/self/status
    return 1
}

# True if a process holds the lock $1. The check itself holds it for a moment, shared.
held() {
    [ -e "$1" ] && ! flock -s -n 8 8<"$1"
}

# Print the state of the run on one line, then its output from $offset on. $1: `running` if its lock was just held.
report() {
    phase=${1:-absent} code=- since=- ended=- reason= announced=
    # The lock before the exit code: its holder records the exit code before it releases the lock.
    if [ $phase = absent ] && ! [ -e "$dir/exit" ] && held "$dir/lock"; then phase=running; fi
    if [ -e "$dir/started" ]; then read -r boot_then since <"$dir/started"; fi
    if [ -e "$dir/exit" ]; then
        phase=ended
        read -r code ended <"$dir/exit"
        if [ -s "$dir/stopped" ]; then read -r reason <"$dir/stopped"; fi
    elif [ $phase = running ]; then
        :
    elif [ "$since" != - ]; then
        phase=lost reason='its runner was killed'
        if [ "$boot_then" != "$boot" ]; then reason='the machine was restarted'; fi
    elif [ -e "$dir/stopped" ]; then
        phase=lost reason='it was stopped before it started'
    fi
    if [ -s "$dir/notice" ]; then read -r announced <"$dir/notice"; fi
    printf 'tpux-run %s %s %s %s %s %s\t%s\n' \
        $phase "$code" "$since" "$uptime" "${ended:--}" "$reason" "$announced"
    # Errors are discarded, since they would mix with the program's output; what is not read now is read next time.
    if [ -s "$dir/output" ] && [ "$offset" = 0 ]; then
        head -c "$chunk_size" "$dir/output" 2>/dev/null
    elif [ -s "$dir/output" ]; then
        tail -c "+$((offset + 1))" "$dir/output" 2>/dev/null | head -c "$chunk_size" 2>/dev/null
    fi
}
