# Run the program $1 of this directory, and record its exit code. Holds the run's lock (fd 9) until that is done.
# If there is a `watcher`, it waits for the notice of a preemption; after a program that has failed or that got a signal
# from the machine, for at most $2 seconds more. $3 is empty for a step of a module.
dir=${0%/*}

# Caught and not ignored: children inherit ignored signals. tpux sends the runner none, so this one is the machine's, as
# in its shutdown. It is recorded unless there is a notice, which says more.
record_signal() { (set -C && echo "signal $1" >"$dir/notice") 2>/dev/null; }
for name in HUP INT QUIT TERM; do trap "record_signal $name" $name; done

# Move this shell into a cgroup of its own, where that is possible: processes that leave the session and clear their
# environment are found there. Recorded first, so that whatever is in it can be ended.
join_cgroup() {
    own=
    while IFS= read -r line; do
        case $line in 0::*..*) ;; 0::*) own=${line#0::} ;; esac
    done </proc/self/cgroup
    read -r uuid </proc/sys/kernel/random/uuid
    read -r pid _ </proc/self/stat
    for base in /sys/fs/cgroup /sys/fs/cgroup/unified; do
        if [ -z "$own" ] || ! [ -e "$base$own/cgroup.procs" ]; then continue; fi
        cgroup=$base${own%/}/tpux-$uuid
        echo "$cgroup" >"$dir/cgroup"
        if mkdir "$cgroup" && echo "$pid" >"$cgroup/cgroup.procs"; then return; fi
        sudo -n sh -c 'mkdir -p "$1" && echo "$2" >"$1/cgroup.procs"' - "$cgroup" "$pid" && return
        rmdir "$cgroup"
        rm -f "$dir/cgroup"
    done
}

watcher=
if [ -e "$dir/watcher" ]; then
    setsid sh "$dir/watcher" $$ </dev/null >/dev/null 2>&1 9>&- &
    watcher=$!
fi
# In a subshell, or the shell's own "Terminated" would be written to the output.
(
    TPUX_RUN_ID=${dir#.tpux/runs/}
    TPUX_RUN_HOME=$(pwd -P)
    export TPUX_RUN_ID TPUX_RUN_HOME
    [ -z "$3" ] || join_cgroup </dev/null >/dev/null 2>&1
    exec setsid sh "$dir/$1"
) >>"$dir/output" 2>&1 9>&-
code=$?
# Into space that was reserved. Now, while what has filled a disk is there.
if [ $code != 0 ]; then printf '%-2047.2047s\n' "$(disks)" 1<>"$dir/disks"; fi
# The time, because it is polled later, and of several workers the first to end is the likely cause of the others' end.
ended=
[ -z "$3" ] || ended=$(date +%s.%N)
printf '%-3s %-20s\n' $code "$ended" 1<>"$dir/ending"
if [ -s "$dir/cgroup" ] && read -r cgroup <"$dir/cgroup"; then
    read -r _ populated <"$cgroup/cgroup.events" # then it stays, and what is left in it can be ended
    # The program may have made some below it.
    [ "$populated" = 1 ] || for sudo in '' 'sudo -n'; do $sudo find "$cgroup" -depth -type d -exec rmdir {} \;; done
fi </dev/null 2>/dev/null
mv -f "$dir/ending" "$dir/exit"
[ -n "$watcher" ] || exit 0

exec 9>&-
left=$2
[ "$code" != 0 ] || [ -e "$dir/notice" ] || left=0
while [ "$left" -gt 0 ] && kill -0 "$watcher" 2>/dev/null; do
    sleep 1
    left=$((left - 1))
done
# The process first: it may not have a group of its own yet.
kill -s KILL "$watcher" 2>/dev/null
kill -s KILL -- "-$watcher" 2>/dev/null
