"""Finds the processes of workers in /proc. Process ids are never stored: they could have been reused."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Environment variable of every process that starts a worker: the emulator's directory and the worker's key.
MARKER_VARIABLE = "TPUX_EMULATOR_WORKER"
_PROC = Path("/proc")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def find_marked(prefix: str) -> dict[int, str]:
    """Return the processes whose marker begins with a prefix, with the rest of the marker."""
    needle = f"{MARKER_VARIABLE}={prefix}".encode()
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            for variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                if variable.startswith(needle):
                    found[pid] = variable[len(needle) :].decode(errors="replace")
    return found


def in_namespace_of(pid: int) -> list[int]:
    """Return the processes in the PID namespace of `pid`; none if it has ended or is in this process's namespace."""
    try:
        namespace = (_PROC / str(pid) / "ns" / "pid").readlink()
    except OSError:
        return []
    if namespace == Path("/proc/self/ns/pid").readlink():
        return []
    found = []
    for other in _pids():
        with contextlib.suppress(OSError):
            if (_PROC / str(other) / "ns" / "pid").readlink() == namespace:
                found.append(other)
    return found


def sshd_configured_in(directory: Path) -> list[int]:
    """Return the listening sshds whose configuration is in or below a directory.

    sshd writes the path to its process title, which overwrites its environment and with it the marker.
    """
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            title = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if title.startswith("sshd") and f" -f {directory}/" in title:
                found.append(pid)
    return found


def descendants(pids: list[int]) -> list[int]:
    """Return the children of processes, their children, and so on."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            children = [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
            found += children + descendants(children)
    return found


def first_child(pid: int) -> int | None:
    """Return the first child of a process, or None."""
    try:
        children = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def leads_session(pid: int) -> bool:
    """Return True if the process is a session leader."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def command_name(pid: int) -> str:
    """Return the name of a process's program; empty if the process has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def exists(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, ignoring those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
