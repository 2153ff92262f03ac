"""Start the supervisor at boot and after a crash: with a systemd user unit, otherwise with crontab."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpux import TpuxError, api
from tpux.api import supervisor

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


def install() -> Installed:
    """Let systemd or cron start the user's supervisor, with this shell's installation and environment.

    Raises:
        TpuxError: neither is available, or one of them failed.
        OSError: a file could not be written.
    """
    script, unit = supervisor.write_start_script(), supervisor.unit_name()
    if _call(["systemctl", "--user", "show-environment"]) is not None:
        installed = Installed("systemd", unit, _install_unit(unit, script))
    elif shutil.which("crontab"):
        line = f"sh {shlex.quote(str(script))} tpux_autostart".replace("%", r"\%")
        mark = f"# {unit}"
        _write_crontab([*_other_lines(unit), f"@reboot {line} {mark}", f"*/{EVERY} * * * * {line} {mark}"])
        installed = Installed("crontab", unit)
    else:
        hint = "start it after a reboot with `tpux supervisor start`"
        raise TpuxError("this machine has neither systemd for users nor crontab", hint=hint)
    supervisor.set_installed(installed.by)
    return installed


def uninstall() -> str:
    """Undo `install`; a supervisor that is running continues.

    Returns:
        What started it, "systemd" or "crontab"; "" if it was not installed.

    Raises:
        TpuxError: systemctl or crontab failed.
    """
    by, unit = supervisor.installed_by(), supervisor.unit_name()
    if not by:
        return ""
    if by == "systemd":
        _check(["systemctl", "--user", "disable", unit])
        _unit_path(unit).unlink(missing_ok=True)
        _check(["systemctl", "--user", "daemon-reload"])
    else:
        _write_crontab(_other_lines(unit))
    supervisor.set_installed(None)
    return by


def _install_unit(unit: str, script: Path) -> tuple[str, ...]:
    path = _unit_path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(script).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    home = str(api.home()).replace("%", "%%")
    written = path.with_name(f"{unit}.new")
    written.write_text(UNIT.format(home=home, script=f'"{quoted}"'))
    written.replace(path)
    _check(["systemctl", "--user", "daemon-reload"])
    _check(["systemctl", "--user", "enable", unit])
    if _call(["loginctl", "enable-linger"]) is None:
        return (NO_LINGER,)
    return ()


def _unit_path(unit: str) -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user" / unit


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
