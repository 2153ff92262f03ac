"""What holds the accelerator of a worker: processes, a lock file and full logs; found for diagnose, ended by solve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpux import Finding, Sh, sh

if TYPE_CHECKING:
    from tpux_libtpu.section import LibtpuSection

_SCRIPT = Path(__file__).with_name("devices.sh").read_text(encoding="utf-8")


def device_step(mode: Literal["list", "repair", "preview"], section: LibtpuSection, *, force: bool = False) -> Sh:
    """Return the step that lists what holds the accelerator, that ends it, or that prints what the second would do.

    Args:
        mode: `list`, `repair` or `preview`.
        section: which devices, and where libtpu's files are.
        force: end all processes that hold the accelerator, not only those of this user's runs that have ended and of
            `tpux diagnose`.
    """
    what = "End what holds the TPU, and remove its stale lock file" if mode == "repair" else "Find what holds the TPU"
    step = sh(
        f"# {what}\nset -- {{mode}} {{force}} {{directory}} {{full}} {{ports}} {{devices}}\n{_SCRIPT}",
        mode=mode,
        force=int(force),
        directory=section.directory,
        full=section.full_percent,
        ports=" ".join(map(str, section.ports)),
        devices=section.devices,
        timeout=120,
    )
    return step.with_preview(device_step("preview", section, force=force)) if mode == "repair" else step


def findings_of(listed: str, section: LibtpuSection, solve: str, own: str) -> list[Finding]:
    """Return what the output of the step `list` means.

    Args:
        listed: the output.
        section: as in `device_step`.
        solve: the command that repairs it.
        own: the job's key, with which the ids of its runs begin; "" of machines without a job, for which any run is.
    """
    rows = [line.split("\t") for line in listed.splitlines()]
    devices = [row[1] for row in rows if row[0] == "device"]
    found = [Finding("ok", f"devices: {', '.join(devices)}")] if devices else []
    held = [_holder(row[1:], solve, own) for row in rows if row[0] == "holder" and len(row) == 7]
    found += held
    for row in rows:
        if row[0] == "lock" and not held:
            found.append(Finding("warning", f"{row[1]} exists, and no process holds the accelerator", hint=solve))
        if row[0] == "logs" and len(row) == 4:
            found += _logs(row[1:], section.full_percent, solve)
    return found


def what_holds(listed: str, section: LibtpuSection, solve: str, own: str) -> tuple[str, str]:
    """Return whether a TPU is `occupied` or `free`, or that this is `unknown`, and why; the arguments as above.

    Only root sees the processes of other users and containers. Where no device is seen, as below a pattern that
    does not match this machine's, there is no TPU to judge.
    """
    words = {line.partition("\t")[0] for line in listed.splitlines()}
    if words & {"holder", "lock"}:
        found = findings_of(listed, section, solve, own)
        one = next(one for one in found if one.level == "warning" or " holds " in one.message)
        return "occupied", f"{one.message}; {one.hint}" if one.hint else one.message
    if "device" not in words:
        return "unknown", f"whether it is held is unknown: the worker has no {' or '.join(section.devices)}"
    if "root" not in words:
        return "unknown", "whether it is held is unknown: only root sees all processes, and sudo asks for a password"
    return "free", "no process holds it, and there is no lock file, so the machine is bad"


def _holder(row: list[str], solve: str, own: str) -> Finding:
    pid, kind, run, user, name, device = row
    process = f"process {pid} ({name}) of user {user} holds {device}"
    if kind == "live" and own and not run.startswith(f"{own}-w"):
        return Finding(
            "warning", f"{process}: {run}, which is running and is not a run of this job", hint=_wait(run, own)
        )
    if kind == "live":
        return Finding("ok", f"{process}: it belongs to {run}, which is running")
    if kind == "left":
        return Finding("warning", f"{process}: {run} has ended and left it behind", hint=solve)
    if kind == "diagnosis":
        what = "tpux diagnose asks JAX for its devices, or was interrupted then"
        return Finding("warning", f"{process}: {what}", hint=f"{solve} ends it")
    return Finding("warning", f"{process}, and tpux did not start it", hint=f"{solve} --force ends it")


def _wait(run: str, own: str) -> str:
    """Return what to do about a run of another job that is alive: a solver leaves it alone."""
    if match := re.match(rf"{re.escape(own.rpartition('-')[0])}-(\d+)-w\d+/", run):
        return f"wait until job {int(match[1])} has ended, or stop it: tpux stop {int(match[1])}"
    return "wait until it has ended, or ask its owner: it is a job of another user or store (TPUX_HOME)"


def _logs(row: list[str], full: int, solve: str) -> list[Finding]:
    path, used, access = row
    if used.isdecimal() and int(used) >= full:
        return [Finding("warning", f"the file system of {path} is {used}% full", hint=f"{solve} deletes these logs")]
    if access == "unwritable":
        return [Finding("warning", f"{path} belongs to another user: libtpu cannot write its logs", hint=solve)]
    return []
