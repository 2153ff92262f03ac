# Send a signal to the processes of a run, and print those that are alive after a moment, as "pid:start time", with a +
# if SIGTERM was kept from it.
# $1: the run's id, $2: the home directory, $3: TERM, KILL, or 0 to send none, $4: the program's session or 0, $5: its
# cgroup or empty, then the output of an earlier call that did send a signal.
id=$1 home=$2 signal=$3 session=$4 cgroup=$5
shift 5
known=" $* "

# Set state, parent and began, the start time in ticks since the boot, of process $1 (proc_pid_stat(5)); false if it is
# gone or a zombie.
read_stat() {
    line=
    # Line by line: the command's name may contain anything, and ends at the last parenthesis.
    while IFS= read -r part || [ -n "$part" ]; do line="$line $part"; done 2>/dev/null <"/proc/$1/stat" || return 1
    set -- ${line##*) }
    [ $# -ge 20 ] || return 1
    state=$1 parent=$2 began=${20}
    [ "$state" != Z ] && [ "$state" != X ]
}

# Add the processes of these paths below /proc to $found, and those that are new to $new. Without a process: several
# workers on one machine do this at once.
add() {
    for path; do
        pid=${path#/proc/}
        pid=${pid%%/*}
        case " $found " in *" $pid "*) ;; *) found="$found $pid" new="$new $pid" ;; esac
    done
}

# Set found to the pids of the run: those with the markers in their environment, those in the session or the cgroup, those
# that got a signal before (an exiting process has no environment any more and may still hold a device), and all descendants of
# these: an environment that clears variables leaves them unmarked, and setsid takes them out of the session.
find_pids() {
    found= new= members="[0-9]+ [0-9]+ $session"
    # Several workers on one machine have runs of the same id, each below its own home.
    set -- $(grep -lsxzF "TPUX_RUN_ID=$id" /proc/[0-9]*/environ)
    [ $# = 0 ] || add $(grep -lsxzF "TPUX_RUN_HOME=$home" "$@")
    if [ "$cgroup" ]; then
        # 0 stands for each process of a pid namespace that cannot be seen from here.
        for pid in $(find "$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null); do
            [ "$pid" = 0 ] || add "/proc/$pid"
        done
    fi
    for entry in $known; do
        entry=${entry%+}
        if read_stat "${entry%:*}" && [ "${entry#*:}" = "$began" ]; then add "${entry%:*}"; fi
    done
    # The session only in the first of two empty rounds: an exec does not hide its members.
    [ "$session$empty" = "$session" ] && [ "$session" != 0 ] || members=
    # With grep, since large machines have thousands of kernel threads. Fields: state, parent, group, session.
    while [ "$new$members" ]; do
        either=$members
        for pid in $new; do either="$either|$pid"; done
        new= members=
        add $(grep -lsE "\\) [A-Z] (${either#|}) " /proc/[0-9]*/stat)
    done
}

# SIGTERM is sent once: many programs exit at once on the second one, in the middle of a checkpoint.
send() {
    case $signal$known in
        0* | TERM*" $1 "*) ;;
        *) kill -s "$signal" "${1%:*}" 2>/dev/null ;;
    esac
}

# Return whether a process was started by one that has got SIGTERM and lives, or by what that has started: it may be the
# program that copies the last checkpoint.
is_of_handler() {
    [ "$signal" = TERM ] && [ "$known" != '  ' ] && [ "$began" -ge "$since" ] || return 1
    case $known in *" $entry "*) return 1 ;; esac # it has got it
    while :; do
        case $known in *" $parent:"*) return 0 ;; esac
        case " $found " in *" $parent "*) read_stat "$parent" || return 1 ;; *) return 1 ;; esac
    done
}

# What has existed in this moment gets SIGTERM; what an earlier call has not found was started later.
since=0
if [ "$known" = '  ' ] && read -r up _ </proc/uptime; then since=${up%.*}${up#*.}; fi

# Repeated, since processes may fork in between.
empty=
for pause in 0.02 0.05 0.1 0.2 ''; do
    alive=
    # All at once, and what the program has put into cgroups below it.
    if [ $signal = KILL ] && [ -w "$cgroup/cgroup.kill" ]; then echo 1 >"$cgroup/cgroup.kill"; fi
    find_pids
    for pid in $found; do
        read_stat "$pid" || continue
        entry=$pid:$began
        if is_of_handler; then
            alive="$alive$entry+ "
        else
            alive="$alive$entry "
            send "$entry"
        fi
    done
    known=" $alive"
    # During an exec a process has no environment for a moment: the run is empty if it was empty twice.
    if [ -n "$alive" ]; then
        empty=
    elif [ -z "$empty" ] && [ -n "$pause" ]; then
        empty=once
        continue
    fi
    if [ "$signal" = 0 ] || [ -z "$alive" ] || [ -z "$pause" ]; then break; fi
    sleep "$pause"
done
echo $alive
