# $1: list, repair or preview, $2: 1 to end processes of others too, $3: the directory of libtpu's lock file and logs,
# $4: at how many percent of use that is full, $5: ports of libtpu and JAX, then patterns of the paths of the devices.
mode=$1 force=$2 directory=$3 full=$4 ports=$5
shift 5
lock=$directory/libtpu_lockfile logs=$directory/tpu_logs home=$(pwd -P) tab=$(printf '\t')
sudo=
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi

# Print "<pid> <path>" for each process that has a file open whose path matches one of the patterns.
open_files() {
    for pattern; do
        $sudo find /proc/[0-9]*/fd -maxdepth 1 -lname "$pattern" -printf '%h %l\n' 2>/dev/null || :
    done | sed 's|^/proc/\([0-9]*\)/fd |\1 |' | sort -u
}

# Print "<pid> port <port>" for each process that listens on one of the ports.
listeners() {
    for port in $ports; do
        hex=$(printf '%04X' "$port")
        for inode in $(awk -v end=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == end { print $10 }' \
            /proc/net/tcp /proc/net/tcp6 2>/dev/null); do
            open_files "socket:\\[$inode\\]" | sed "s/ .*/ port $port/"
        done
    done
}

# Print the variable that marks process $1 as one of a run, if it has one. In a container it has another name.
mark_of() { $sudo grep -szEm1 "^TPUX_(CONTAINER_)${2-?}RUN_ID=" "/proc/$1/environ" | tr -d '\0' || :; }

# Print the id of the container of process $1, from the name of its cgroup.
container_of() { sed -nE 's|^.*[/:-]([0-9a-f]{64})([./].*)?$|\1|p' "/proc/$1/cgroup" 2>/dev/null | sed -n 1p; }

# Print the marked process of the container of process $1, which docker exec may have started, without marks.
marked_beside() {
    container=$(container_of "$1")
    if [ -z "$container" ] || [ "$container" = "$(container_of self)" ]; then return; fi
    for file in $(grep -slF "$container" /proc/[0-9]*/cgroup); do
        pid=${file#/proc/} pid=${pid%/*}
        if [ -n "$(mark_of "$pid" '')" ]; then echo "$pid" && return; fi
    done
}

# Print to which run process $1 belongs: "live <run>", "left <run>" if that has ended, "diagnosis <run>" if it is only to
# find out whether JAX can use the devices, or "other -". A run that is alive has a lock that its runner holds, and no
# exit code.
owner_of() {
    run=$(mark_of "$1")
    if [ -z "$run" ] && beside=$(marked_beside "$1") && [ -n "$beside" ]; then
        set -- "$beside"
        run=$(mark_of "$1")
    fi
    mark=${run%%ID=*} run=${run#*=}
    case $run in '' | *..* | *[!-A-Za-z0-9._/]*) echo other - && return ;; esac
    if ! $sudo grep -szqxF "${mark}HOME=$home" "/proc/$1/environ"; then
        echo other -
    elif ! [ -e ".tpux/runs/$run/exit" ] && [ -e ".tpux/runs/$run/lock" ] && ! flock -sn 8 8<".tpux/runs/$run/lock"; then
        case $run in */diagnose-*) echo "diagnosis $run" ;; *) echo "live $run" ;; esac
    else
        echo "left $run"
    fi
}

# Print each process that holds a device: pid, kind of owner, run, user, name, device.
holders() {
    { open_files "$@" && listeners; } | while read -r pid device; do
        name= user=$(stat -c %U "/proc/$pid" 2>/dev/null) || continue
        read -r name 2>/dev/null <"/proc/$pid/comm" || continue
        owner=$(owner_of "$pid")
        printf '%s\t' "$pid" "${owner% *}" "${owner#* }" "$user" "$name"
        printf '%s\n' "$device"
    done
}

used() { df -Pk -- "$directory" 2>/dev/null | sed -n '2s/.* \([0-9]*\)% .*/\1/p'; }

list() {
    if [ "$(id -u)" = 0 ] || [ -n "$sudo" ]; then echo root; fi
    for pattern; do
        IFS=
        for device in $pattern; do if [ -e "$device" ]; then printf 'device\t%s\n' "$device"; fi; done
        unset IFS
    done
    holders "$@" | sed "s/^/holder$tab/"
    if [ -e "$lock" ]; then printf 'lock\t%s\n' "$lock"; fi
    if [ -d "$logs" ]; then
        printf 'logs\t%s\t%s\t' "$logs" "$(used)"
        if [ -w "$logs" ]; then echo writable; else echo unwritable; fi
    fi
}

# Print the pids that may be ended: of runs that have ended, of a diagnosis, whose tpux may have been interrupted, or all.
endable() {
    holders "$@" | awk -F '\t' -v force="$force" 'force == 1 || $2 == "left" || $2 == "diagnosis" { print $1 }' | sort -u
}

# SIGTERM once, then SIGKILL after 10 s. The holders are listed anew each time: a pid may be another process by now.
end_holders() {
    count=0 sent=' '
    while pids=$(endable "$@") && [ -n "$pids" ]; do
        if [ $count -ge 40 ]; then break; fi
        for pid in $pids; do
            case $sent in
                *" $pid "*) if [ $count -ge 20 ]; then $sudo kill -s KILL "$pid" 2>/dev/null || :; fi ;;
                *)
                    $sudo kill -s TERM "$pid" && echo "ending process $pid, which holds the accelerator" || :
                    sent="$sent$pid "
                    ;;
            esac
        done
        sleep 0.5
        count=$((count + 1))
    done
}

repair() {
    end_holders "$@"
    left=$(holders "$@" | sed -n '1p')
    if [ -n "$left" ]; then
        IFS=$tab read -r pid kind run user name device <<END
$left
END
        advice='set solve.force, or use tpux solve --force, to end it'
        if [ "$kind" = live ]; then advice="it belongs to a program that is running, $run"; fi
        echo "process $pid ($name) of user $user holds $device; $advice" >&2
        exit 1
    fi
    if [ -e "$lock" ] && [ -z "$(open_files "$lock")" ]; then $sudo rm -f -- "$lock" && echo "removed $lock"; fi
    if [ -d "$logs" ] && { [ "$(used)" -ge "$full" ] || ! [ -w "$logs" ]; }; then
        $sudo find "$logs" -xdev -delete && echo "deleted $logs"
    fi
}

# Print what repair would do. While a process remains that it does not end, it removes nothing.
preview() {
    holders "$@" | awk -F '\t' '
        { process = $1 FS $2 FS $3 FS $4 FS $5; devices[process] = devices[process] ", " $6 }
        END { for (process in devices) print process FS substr(devices[process], 3) }' | sort -n |
        while IFS=$tab read -r pid kind run user name held; do
            command=$(tr '\0\n\t' '   ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c 1-120)
            process="process $pid (${command:-$name}) of user $user, which holds $held"
            case $kind$force in
                left*) echo "would end $process: $run has ended and left it behind" ;;
                diagnosis*) echo "would end $process: tpux diagnose asks JAX for its devices, or was interrupted then" ;;
                live0) echo "would not end $process: it belongs to a program that is running, $run" ;;
                live*) echo "would end $process, although it belongs to a program that is running, $run" ;;
                *0) echo "would not end $process: tpux did not start it; --force ends it too" ;;
                *) echo "would end $process: tpux did not start it" ;;
            esac
        done
    if [ "$(holders "$@" | cut -f 1 | sort -u)" != "$(endable "$@")" ]; then
        echo "would remove nothing while the accelerator is held"
        return
    fi
    if [ -e "$lock" ] && [ -z "$(open_files "$lock")" ]; then echo "would remove the lock file $lock"; fi
    if [ -d "$logs" ] && { [ "$(used)" -ge "$full" ] || ! [ -w "$logs" ]; }; then
        reason="the file system of $directory is $(used)% full"
        if [ "$(used)" -lt "$full" ]; then reason='they belong to another user, so libtpu cannot write there'; fi
        echo "would delete the logs $logs, $($sudo du -xsh -- "$logs" 2>/dev/null | cut -f 1): $reason"
    fi
}

$mode "$@"
