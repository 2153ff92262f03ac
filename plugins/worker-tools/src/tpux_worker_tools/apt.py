"""Install packages with apt on a worker, where another program, such as an upgrade, may hold its locks."""

from __future__ import annotations

import shlex

LOCK_TIMEOUT = 600.0
"""Seconds to wait for the locks, unless a module has a setting of its own."""

LOCKS = [f"/var/{path}" for path in ("lib/dpkg/lock-frontend", "lib/dpkg/lock", "lib/apt/lists/lock")]
"""The files that apt and dpkg lock."""

_WAIT = r"""
apt_deadline=$(($(date +%s) + @limit@)) apt_said=
for apt_lock in @locks@; do
    apt_inode=$(stat -c %i "$apt_lock" 2>/dev/null) || continue
    # Each user can read who holds a lock of which file: ... POSIX ADVISORY WRITE PID DEVICE:INODE START END
    while apt_pid=$(grep -m 1 "POSIX  *ADVISORY  *WRITE .*:$apt_inode " /proc/locks); do
        [ "$(date +%s)" -lt "$apt_deadline" ] || break
        apt_pid=${apt_pid#*WRITE }
        apt_pid=${apt_pid%% *}
        [ -n "$apt_said" ] ||
            echo "waiting for the lock of apt, which $(cat "/proc/$apt_pid/comm" 2>/dev/null) (process $apt_pid) holds"
        apt_said=yes
        sleep 1
    done
done
"""

# apt waits for dpkg's lock, but not for that of the package lists (`DPkg::Lock::Timeout` excludes it), so the call is
# repeated. The lock is recognized by apt's message, which must not be translated.
_FUNCTIONS = r"""
apt_deadline=$(($(date +%s) + @limit@))
apt() { # ARGUMENT...: of apt-get; returns 75 if it was locked for too long
    apt_pause=1
    while :; do
        apt_left=$((apt_deadline - $(date +%s)))
        [ "$apt_left" -gt 0 ] || apt_left=0
        apt_log=$(mktemp)
        apt_code=0
        $sudo env LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            apt-get -q -y -o DPkg::Lock::Timeout="$apt_left" "$@" >"$apt_log" 2>&1 || apt_code=$?
        cat "$apt_log"
        apt_locked=
        if grep -q 'Could not get lock\|Unable to lock\|Unable to acquire' "$apt_log"; then apt_locked=yes; fi
        rm -f "$apt_log"
        [ "$apt_code" != 0 ] || return 0
        [ -n "$apt_locked" ] || return "$apt_code"
        if [ "$apt_left" = 0 ]; then
            echo 'another program has held the lock of apt for @text@: wait for it, @remedy@'
            return 75
        fi
        [ "$apt_pause" -le "$apt_left" ] || apt_pause=$apt_left
        sleep "$apt_pause"
        [ "$apt_pause" -ge 15 ] || apt_pause=$((apt_pause * 2))
    done
}
apt_update() { # another repository of the worker may be broken, which need not matter here
    apt update || [ $? != 75 ] || exit 75
}
"""


def functions(lock_timeout: float | None = None, remedy: str = "and try again") -> str:
    """Return the shell functions `apt` and `apt_update` for a script that has set `$sudo` to '' or to `sudo -n`.

    They wait for the locks within one limit, kill no process, and say what to do when the limit is over. Since 0.1.

    Args:
        lock_timeout: seconds to wait for the locks altogether; by default `LOCK_TIMEOUT`.
        remedy: what the user can do beside waiting, without quotes, such as `or set tool.lock_timeout`.
    """
    limit = LOCK_TIMEOUT if lock_timeout is None else lock_timeout
    parts = {"limit": str(round(limit)), "text": f"{limit:g} s", "remedy": remedy}
    script = _FUNCTIONS
    for name, text in parts.items():
        script = script.replace(f"@{name}@", text)
    return script


def wait(limit: float = LOCK_TIMEOUT) -> str:
    """Return the part of a script that waits until no program holds apt's locks, before something that may use apt.

    It needs no root, says once which program it waits for, and goes on when the limit is over. Since 0.1.

    Args:
        limit: seconds to wait altogether.
    """
    return _WAIT.replace("@limit@", str(round(limit))).replace("@locks@", shlex.join(LOCKS))
