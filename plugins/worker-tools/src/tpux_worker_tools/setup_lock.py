"""Let jobs that share a machine set up the same thing one after the other, and keep what a program uses."""

from __future__ import annotations

TIMEOUT = 600
"""Seconds to wait for another job, unless a module has a limit of its own."""

# The steps of a set-up are processes of their own, so a file names the holder of the lock, from the first step to the
# last. A job that has ended releases it in its clean-up; one that could not blocks nobody for longer than two hours.
# Then files in `~/.tpux/uses` say who uses what.
_FUNCTIONS = r"""
acquire_setup_lock() { # FILE OWNER JOB SECONDS WHAT REMEDY
    lock_waited=0
    mkdir -p "${1%/*}"
    while :; do
        exec 8>>"$1"
        flock -w 60 8
        lock_holder=$(head -n 1 "$1")
        if [ -z "$lock_holder" ] || [ "$lock_holder" = "$2" ] || [ -n "$(find "$1" -mmin +120)" ]; then
            printf '%s\n' "$2" "$3" >"$1"
            exec 8>&-
            return
        fi
        exec 8>&-
        lock_other=$(tail -n 1 "$1")
        if [ "$lock_waited" -ge "$4" ]; then
            echo "$lock_other has not set up $5 within $lock_waited s: wait for it or stop it, $6"
            exit 75
        fi
        [ "$lock_waited" != 0 ] || echo "waiting for $lock_other, which sets up $5"
        sleep 2
        lock_waited=$((lock_waited + 2))
    done
}
release_setup_lock() { # FILE OWNER
    if [ "$(head -n 1 "$1" 2>/dev/null)" = "$2" ]; then : >"$1"; fi
}
drop_setup_lock() { # FILE OWNER: fails if another job holds it; else no other job gets it before this script has ended
    use_file "$1" "$2"
    if [ -d "${use%/*}" ]; then
        rm -f "$use" "${use%/*}/.${use##*/}".*
        rmdir --ignore-fail-on-non-empty "${use%/*}"
    fi
    [ -e "$1" ] || return 0
    exec 8>>"$1"
    flock -w 20 8
    lock_holder=$(head -n 1 "$1")
    if [ -n "$lock_holder" ] && [ "$lock_holder" != "$2" ]; then return 1; fi
    : >"$1"
}
lock_file() { # FILE
    [ -d "${1%/*}" ] || mkdir -p "${1%/*}"
    exec 8>>"$1"
    flock -w 60 8 || { echo "another process keeps $1 locked"; return 1; }
}
unlock_file() {
    exec 8>&-
}
use_file() { # FILE OWNER: sets use
    use=${1%/*}
    use=.tpux/uses/$2/${use##*/}
}
record_use() { # FILE OWNER JOB DIRECTORY
    use_file "$1" "$2"
    new_use=${use%/*}/.${use##*/}.$$
    { [ -d "${use%/*}" ] || mkdir -p "${use%/*}"; } && printf '%s\n' "$3" "$4" >"$new_use" && mv -f "$new_use" "$use"
}
is_updated() { # FILE OWNER DIRECTORY
    [ -n "$(find "$1" -mmin -120 2>/dev/null)" ] && lock_holder=$(head -n 1 "$1") || return
    [ -n "$lock_holder" ] && [ "$lock_holder" != "$2" ] || return
    use_file "$1" "$2"
    [ -n "$(find "$use" -mmin -120 2>/dev/null)" ] || return
    { read -r used_job && read -r used_path; } <"$use" && [ "$used_path" -ef "$3" ]
}
is_used() { # FILE VARIABLE DIRECTORY: sets user
    lock_holder=$(head -n 1 "$1" 2>/dev/null) || :
    # A program starts only when all workers of its job are ready.
    for used_by in .tpux/uses/*/*; do
        case $used_by in ".tpux/uses/$lock_holder/"*) continue ;; esac
        [ -n "$(find "$used_by" -mmin -120 2>/dev/null)" ] || continue
        { read -r user && read -r used_path; } <"$used_by" || continue
        if [ "$used_path" -ef "$3" ]; then return; fi
    done
    for used_by in $(grep -lsz "^$2=" /proc/[0-9]*/environ); do
        used_by=${used_by%/environ}
        used_path=$(grep -hsz -m 1 "^$2=" "$used_by/environ" | tr -d '\0')
        # By way of the process's root: in a container the same path is another directory.
        [ "$used_by/root${used_path#*=}" -ef "$3" ] || continue
        used_run=$(grep -hsz -m 1 '^TPUX_RUN_ID=' "$used_by/environ" | tr -d '\0')
        user="a program${used_run:+ of a job ($used_run)}, process ${used_by#/proc/},"
        return 0
    done
    return 1
}
fail_if_used() { # FILE VARIABLE DIRECTORY WHAT WHY REMEDY
    if is_used "$1" "$2" "$3"; then
        echo "$user uses $4 $5: wait for it or stop it, $6"
        exit 1
    fi
}
"""


def functions() -> str:
    """Return shell functions for the scripts of a set-up: which job may set up, and who uses what has been set up.

    - `acquire_setup_lock FILE OWNER JOB SECONDS WHAT REMEDY`, in the first step, waits until no other job holds the
      lock. FILE is the same for all jobs that set up the same thing, OWNER is `job.key`, JOB is the job for people, and
      REMEDY ends the message about a wait of more than SECONDS.
    - `release_setup_lock FILE OWNER`, in the last step, lets the next job begin.
    - `record_use FILE OWNER JOB DIRECTORY`, before that and in `check`, says that the job uses DIRECTORY, an absolute
      path: its program may start at any time. The directory of FILE is the module's; a job uses one thing of a module.
      Where `TPUX_CHECK_ONLY` is set, as by `tpux check`, no program follows.
    - `is_updated FILE OWNER DIRECTORY` succeeds if another job holds the lock, and the job has said before, within two
      hours, that it uses DIRECTORY: as long as that was complete before, it still is for this job.
    - `drop_setup_lock FILE OWNER`, in `clean_up`, ends the use and the lock of a set-up that was cut off; it fails
      while another job holds the lock, which needs its files.
    - `is_used FILE VARIABLE DIRECTORY` succeeds if another job than the holder of the lock has recorded its use
      within two hours; or if a process has VARIABLE in its environment and it names DIRECTORY, as `VIRTUAL_ENV` does.
      The variable `user` then says which one.
    - `lock_file FILE` and `unlock_file` are around what looks at a use and at the state of DIRECTORY, and writes one of
      them.
    - `fail_if_used FILE VARIABLE DIRECTORY WHAT WHY REMEDY`, before DIRECTORY is deleted or replaced, ends the script
      if it is used. WHAT is DIRECTORY for people, WHY says why it is not kept, and REMEDY ends the message.

    Since 0.1.
    """
    return _FUNCTIONS
