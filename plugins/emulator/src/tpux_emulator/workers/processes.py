"""Which processes are whose, from /proc. Nothing here trusts a process id that was written down before."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# In the environment of every process that starts a worker; it says which emulator's and which worker.
MARKER_VARIABLE = "TPUX_EMULATOR_WORKER"
_PROC = Path("/proc")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def find_marked(prefix: str) -> dict[int, str]:
    """Processes of this user that carry our mark, with what follows the prefix in it."""
    needle = f"{MARKER_VARIABLE}={prefix}".encode()
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            for variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                if variable.startswith(needle):
                    found[pid] = variable[len(needle) :].decode(errors="replace")
    return found


def in_namespace_of(pid: int) -> list[int]:
    """Processes in the same process namespace as `pid`; empty when it has ended or lives in ours."""
    try:
        wanted = (_PROC / str(pid) / "ns" / "pid").readlink()
    except OSError:
        return []
    if wanted == Path("/proc/self/ns/pid").readlink():
        return []
    found = []
    for other in _pids():
        with contextlib.suppress(OSError):
            if (_PROC / str(other) / "ns" / "pid").readlink() == wanted:
                found.append(other)
    return found


def sshd_configured_in(directory: Path) -> list[int]:
    """Listening sshds whose configuration lies in or below a directory.

    Their title says it; it also overwrites their environment, so that they carry no mark.
    """
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            title = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if title.startswith("sshd") and f" -f {directory}/" in title:
                found.append(pid)
    return found


def descendants(pids: list[int]) -> list[int]:
    """The children of processes, their children, and so on."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            children = [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
            found += children + descendants(children)
    return found


def first_child(pid: int) -> int | None:
    """The first child of a process, if it has one."""
    try:
        children = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def leads_session(pid: int) -> bool:
    """Whether the process is the first of its session."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def command_name(pid: int) -> str:
    """The name of a process's program; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def exists(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal; who has ended meanwhile is left alone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
