"""Find and signal the processes of a worker, by a variable in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tpux_local.host import HOME_VARIABLE


def processes_of(homes: Iterable[Path]) -> list[int]:
    """Return the pids of all processes of the workers with these home directories, except this process.

    Zombies (which have no environment) and processes of other users are not included.
    """
    variables = {f"{HOME_VARIABLE}={home}".encode() for home in homes}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if not variables.isdisjoint(_environment(entry).split(b"\0")):
                    found.append(int(entry.name))
    return found


def _environment(process: Path) -> bytes:
    """Return the environment of a process. It is empty for a moment during execve(2), so the read is repeated."""
    for _ in range(100):
        if content := (process / "environ").read_bytes():
            return content
        (process / "exe").readlink()  # raises for kernel threads and zombies, which have no executable
        time.sleep(0.001)
    return b""


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
