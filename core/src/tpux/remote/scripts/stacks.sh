# Write the stacks of the run's Python processes to its output, and print how many processes were asked for them.
# With py-spy of the program's own PATH (in its container, if it has one) or of this shell's, if it works; else by
# SIGABRT, which ends a process, so only where faulthandler writes the stack first. SIGQUIT and SIGTERM print none.
# Once: a later call, as of a supervisor that continues after the death of another, prints the same.
asked=0
if ! [ -d "$dir" ] || { exec 7>>"$dir/stacks" && flock -w 80 7 && read -r asked <"$dir/stacks"; }; then
    echo "tpux-run ${asked:-0}"
    exit
fi
sudo= asked=0 left=8 home=$(pwd -P)
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi

variable() { $sudo grep -szm1 "^$2=" "/proc/$1/environ" | tr -d '\0' | cut -d= -f2-; }

with_py_spy() {
    inner=$(sed -n 's/^NSpid:.*[[:space:]]\([0-9]*\)$/\1/p' "/proc/$1/status")
    if [ "${inner:-$1}" != "$1" ]; then # it has process ids of its own, as in a container
        $sudo timeout 10 nsenter -t "$1" -m -p env PATH="$(variable "$1" PATH)" \
            py-spy dump --pid "$inner" >>"$dir/output" && return
    fi
    spy=$(PATH=$(variable "$1" PATH):$PATH && command -v py-spy) || return 1
    $sudo timeout 10 "$spy" dump --pid "$1" >>"$dir/output" 2>&1
}

with_abort() {
    [ "$(variable "$1" PYTHONFAULTHANDLER)" = 1 ] || return 1
    # No core file, not even through a program that the kernel pipes it to.
    $sudo prlimit --pid "$1" --core=0:0 || return 1
    echo 0 | $sudo tee "/proc/$1/coredump_filter" >/dev/null
    $sudo kill -s ABRT "$1"
}

# In a container the marks have other names, since a stop signals all processes that have the first ones.
marked() {
    $sudo grep -lsxzF "$1RUN_ID=$id" /proc/[0-9]*/environ | xargs -r $sudo grep -lsxzF "$1RUN_HOME=$home"
}

# By number, so mostly the oldest first: the program itself rather than its data loaders.
for file in $({ marked TPUX_; marked TPUX_CONTAINER_; } | sort -t / -k 3n); do
    pid=${file#/proc/} pid=${pid%/environ}
    exe=$($sudo readlink "/proc/$pid/exe")
    case ${exe##*/} in python*) ;; *) continue ;; esac # not others below a directory lib/python3.11
    [ $left -gt 0 ] || break
    left=$((left - 1))
    printf 'tpux: the stack of process %s, which is ended because it is silent:\n' "$pid" >>"$dir/output"
    if with_py_spy "$pid" || with_abort "$pid"; then
        asked=$((asked + 1))
    else
        echo 'tpux: unknown: py-spy is not installed, and PYTHONFAULTHANDLER=1 is not set' >>"$dir/output"
    fi
done 2>/dev/null
[ $asked = 0 ] || sleep 0.5 # for what faulthandler writes
echo $asked >&7
echo "tpux-run $asked"
