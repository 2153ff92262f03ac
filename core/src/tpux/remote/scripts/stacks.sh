# Write the stacks of the run's Python processes to its output, and print how many processes were asked for them.
# With py-spy of the program's own PATH or of this shell's, if it works; else by SIGABRT, which ends a process, so only
# where faulthandler writes the stack first. SIGQUIT and SIGTERM print none.
sudo= asked=0 left=8 home=$(pwd -P)
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then sudo='sudo -n'; fi

variable() { grep -szm1 "^$2=" "/proc/$1/environ" | tr -d '\0' | cut -d= -f2-; }

with_py_spy() {
    spy=$(PATH=$(variable "$1" PATH):$PATH && command -v py-spy) || return 1
    $sudo timeout 10 "$spy" dump --pid "$1" >>"$dir/output" 2>&1
}

with_abort() {
    [ "$(variable "$1" PYTHONFAULTHANDLER)" = 1 ] || return 1
    # No core file, not even through a program that the kernel pipes it to.
    prlimit --pid "$1" --core=0:0 || return 1
    echo 0 >"/proc/$1/coredump_filter"
    kill -s ABRT "$1"
}

for file in $(grep -lsxzF "TPUX_RUN_ID=$id" /proc/[0-9]*/environ | xargs -r grep -lsxzF "TPUX_RUN_HOME=$home"); do
    pid=${file#/proc/} pid=${pid%/environ}
    case $(readlink "/proc/$pid/exe") in */python*) ;; *) continue ;; esac
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
echo "tpux-run $asked"
