"""Start the supervisor at boot and after a crash: with a systemd user unit, otherwise with crontab.

`python -m tpux.supervisor.autostart` is what cron runs: it starts a supervisor if none runs and a job needs one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpux import env
from tpux.errors import TpuxError
from tpux.supervisor import client
from tpux.supervisor.files import Files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpux.store import Store
    from tpux.store.state import State

TIMEOUT = 30.0
"""Seconds that systemctl, loginctl and crontab have to answer."""
EVERY = 5
"""Minutes between two checks of cron that a supervisor runs."""
UNIT = """\
[Unit]
Description=tpux supervisor of {home}
StartLimitIntervalSec=0

[Service]
ExecStart=/bin/sh {script} tpux.supervisor
KillMode=process
Restart=on-failure
RestartSec=5

[Install]
WantedBy=default.target
"""
"""KillMode=process: the programs of local jobs are children of the supervisor, and must survive it."""
NO_LINGER = (
    "systemd ends it with your last login and starts it with the next: here only an administrator can change that, with"
    " `loginctl enable-linger` and your user name"
)


@dataclass(frozen=True)
class Installed:
    """How the supervisor was installed.

    Attributes:
        by: what starts it.
        unit: the name of the systemd unit, or what marks the line of the crontab.
        notes: what the user should know about it.
    """

    by: Literal["systemd", "crontab"]
    unit: str
    notes: tuple[str, ...] = ()


def install(store: Store) -> Installed:
    """Let systemd or cron start the user's supervisor, with this shell's installation and environment.

    Raises:
        TpuxError: neither is available, or one of them failed.
        OSError: a file could not be written.
    """
    from tpux.store import files

    paths = Files(store.supervisor)
    paths.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write_atomic(paths.start_script, _script(store).encode())
    unit = client.unit_name(store)
    if _call(["systemctl", "--user", "show-environment"]) is not None:
        installed = Installed("systemd", unit, _install_unit(unit, paths.start_script))
    elif shutil.which("crontab"):
        line = f"sh {shlex.quote(str(paths.start_script))} tpux.supervisor.autostart".replace("%", r"\%")
        mark = f"# {unit}"
        _write_crontab([*_other_lines(unit), f"@reboot {line} {mark}", f"*/{EVERY} * * * * {line} {mark}"])
        installed = Installed("crontab", unit)
    else:
        hint = "start it after a reboot with `tpux supervisor start`"
        raise TpuxError("this machine has neither systemd for users nor crontab", hint=hint)
    files.write_atomic(paths.autostart, files.dump({"by": installed.by, "unit": unit}))
    return installed


def uninstall(store: Store) -> Installed | None:
    """Undo `install`; a supervisor that is running continues.

    Returns:
        How it was installed; None if it was not.

    Raises:
        TpuxError: systemctl or crontab failed.
    """
    paths = Files(store.supervisor)
    if (installed := client.find_installed(store)) is None:
        return None
    by, unit = installed
    if by == "systemd":
        _check(["systemctl", "--user", "disable", unit])
        _unit_path(unit).unlink(missing_ok=True)
        _check(["systemctl", "--user", "daemon-reload"])
    else:
        _write_crontab(_other_lines(unit))
    paths.autostart.unlink(missing_ok=True)
    paths.start_script.unlink(missing_ok=True)
    return Installed("systemd" if by == "systemd" else "crontab", unit)


def suggest_install(store: Store, job: State) -> None:
    """Suggest `tpux supervisor install` once, for a job whose machines survive a reboot of this one."""
    files = Files(store.supervisor)
    if job.allocator == "local" or files.suggested.exists() or client.find_installed(store):
        return
    from tpux.console import say

    with suppress(OSError):
        files.suggested.touch()
        say("after a reboot or a crash here, jobs continue with the next tpux command; `tpux supervisor install` lets")
        say("systemd or cron start the supervisor instead")


def _install_unit(unit: str, script: Path) -> tuple[str, ...]:
    from tpux.store import files

    path = _unit_path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(script).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    home = str(script.parents[2]).replace("%", "%%")
    files.write_atomic(path, UNIT.format(home=home, script=f'"{quoted}"').encode(), mode=0o644)
    _check(["systemctl", "--user", "daemon-reload"])
    _check(["systemctl", "--user", "enable", unit])
    if _call(["loginctl", "enable-linger"]) is None:
        return (NO_LINGER,)
    return ()


def _unit_path(unit: str) -> Path:
    return env.config_home() / "systemd" / "user" / unit


def _script(store: Store) -> str:
    """Return the shell script that starts the module it is given, with this shell's environment."""
    environment = {**env.supervisor_environment(os.environ), env.HOME: str(store.home), env.USER: store.user}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    log = shlex.quote(str(Files(store.supervisor).log))
    program = f'exec {shlex.quote(sys.executable)} -m "$1" >>{log} 2>&1'
    return f"# Written by `tpux supervisor install`.\numask 077\n{exports}cd /\n{program}\n"


def _other_lines(unit: str) -> list[str]:
    """Return the lines of the crontab without those of this supervisor; none if there is no crontab."""
    table = _call(["crontab", "-l"]) or ""
    return [line for line in table.splitlines() if not line.endswith(f"# {unit}")]


def _write_crontab(lines: Sequence[str]) -> None:
    _check(["crontab", "-"], "".join(f"{line}\n" for line in lines))


def _check(command: list[str], text: str = "") -> str:
    """Return what a command prints.

    Raises:
        TpuxError: it failed.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TpuxError(f"`{shlex.join(command)}` failed: {error}") from error
    if done.returncode:
        raise TpuxError(f"`{shlex.join(command)}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _call(command: list[str]) -> str | None:
    """Return what a command prints; None if it failed."""
    try:
        return _check(command)
    except TpuxError:
        return None


def main() -> int:
    """Start a supervisor if none runs, a job needs one, and the user has not stopped it. Returns the exit code."""
    from tpux.store import Store

    store = Store()
    for record in store.records():
        try:
            needed = not record.refresh().done
        except TpuxError:
            continue  # a supervisor could not read it either
        if needed:
            client.ensure_running(store)
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
