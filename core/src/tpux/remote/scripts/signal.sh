# Send a signal to the processes of a run, and print those that are alive after a moment, as "pid:start time".
# $1: the run's id, $2: the home directory, $3: TERM, KILL, or 0 to send none, $4: the program's session or 0,
# then the output of an earlier call that did send a signal.
id=$1 home=$2 signal=$3 session=$4
shift 4
known=" $* "

# Set state and began, the start time, of process $1 (proc_pid_stat(5)); false if it is gone or a zombie.
read_stat() {
    line=
    # Line by line: the command's name may contain anything, and ends at the last parenthesis.
    while IFS= read -r part || [ -n "$part" ]; do line="$line $part"; done 2>/dev/null <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    [ $# -ge 20 ] || return 1
    state=$1 began=${20}
    [ "$state" != Z ] && [ "$state" != X ]
}

# Print the pids of stdin and of all their descendants: an environment that clears variables leaves these unmarked,
# and setsid takes them out of the session.
with_descendants() {
    generation=$(sort -u)
    while [ -n "$generation" ]; do
        echo "$generation"
        set -- $generation
        parents=$(IFS='|'; echo "$*")
        generation=$(grep -lsE "\\) [A-Z] ($parents) " /proc/[0-9]*/stat | cut -d/ -f3)
    done
}

# Print the pids of the run, found by the markers in their environment, by the session, and those that got a signal
# before: an exiting process has no environment any more and may still hold a device.
pids() {
    # Several workers on one machine have runs of the same id, each below its own home.
    grep -lsxzF "TPUX_RUN_ID=$id" /proc/[0-9]*/environ | xargs -r grep -lsxzF "TPUX_RUN_HOME=$home" | cut -d/ -f3
    for entry in $known; do
        if read_stat "${entry%:*}" && [ "${entry#*:}" = "$began" ]; then echo "${entry%:*}"; fi
    done
    # With grep, since large machines have thousands of kernel threads. Fields: state, parent, group, session.
    [ "$session" = 0 ] || grep -lsE "\\) [A-Z] [0-9]+ [0-9]+ $session " /proc/[0-9]*/stat | cut -d/ -f3
}

# SIGTERM is sent once: many programs exit at once on the second one, in the middle of a checkpoint.
send() {
    case $signal$known in
        0* | TERM*" $1 "*) ;;
        *) kill -s "$signal" "${1%:*}" 2>/dev/null ;;
    esac
}

# Repeated, since processes may fork in between.
empty=
for pause in 0.02 0.05 0.1 0.2 ''; do
    alive=
    for pid in $(pids | with_descendants | sort -u); do
        read_stat "$pid" || continue
        alive="$alive$pid:$began "
        send "$pid:$began"
    done
    known=" $alive"
    # During an exec a process has no environment for a moment: the run is empty if it was empty twice.
    if [ -z "$alive$empty" ] && [ -n "$pause" ]; then
        empty=once
        continue
    fi
    if [ "$signal" = 0 ] || [ -z "$alive" ] || [ -z "$pause" ]; then break; fi
    sleep "$pause"
done
echo $alive
