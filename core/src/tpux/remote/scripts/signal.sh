# Signal the processes of a run, and print those that are alive after a moment, as "pid:start time".
# $1: the run's id, $2: the home directory, $3: TERM, KILL, or 0 for a look, $4: the program's session or 0,
# then what an earlier call that did signal has printed.
id=$1 home=$2 signal=$3 session=$4
shift 4
known=" $* "

# Read of process $1: state and began, its start time (proc_pid_stat(5)); false when it is gone or a zombie.
look() {
    line=
    # Line by line: the command's name may contain anything but ends with the last bracket.
    while IFS= read -r part || [ -n "$part" ]; do line="$line $part"; done 2>/dev/null <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    [ $# -ge 20 ] || return 1
    state=$1 began=${20}
    [ "$state" != Z ] && [ "$state" != X ]
}

# The pids of the run, by the marks in their environment, by the session, and those that got a signal: a
# process on its way out has no environment any more and may still hold a device.
pids() {
    # Several workers on one machine have runs of the same id, each below its own home.
    grep -lsxzF "TPUX_RUN_ID=$id" /proc/[0-9]*/environ | xargs -r grep -lsxzF "TPUX_RUN_HOME=$home" | cut -d/ -f3
    for entry in $known; do
        if look "${entry%:*}" && [ "${entry#*:}" = "$began" ]; then echo "${entry%:*}"; fi
    done
    # By grep, for large machines have thousands of kernel threads: state, parent, group, session.
    [ "$session" = 0 ] || grep -lsE "\\) [A-Z] [0-9]+ [0-9]+ $session " /proc/[0-9]*/stat | cut -d/ -f3
}

# SIGTERM once: many programs take the second for impatience, in the middle of a checkpoint.
send() {
    case $signal$known in
        0* | TERM*" $1 "*) ;;
        *) kill -s "$signal" "${1%:*}" 2>/dev/null ;;
    esac
}

# Again and again, for they may fork in between.
nobody=
for pause in 0.02 0.05 0.1 0.2 ''; do
    alive=
    for pid in $(pids | sort -u); do
        look "$pid" || continue
        alive="$alive$pid:$began "
        send "$pid:$began"
    done
    known=" $alive"
    # In the middle of an exec a process has no environment for a moment: nobody is nobody when seen twice.
    if [ -z "$alive$nobody" ] && [ -n "$pause" ]; then
        nobody=once
        continue
    fi
    if [ "$signal" = 0 ] || [ -z "$alive" ] || [ -z "$pause" ]; then break; fi
    sleep "$pause"
done
echo $alive
