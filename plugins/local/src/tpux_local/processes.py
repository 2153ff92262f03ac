"""The processes of a worker: those that carry its home in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tpux_local.host import HOME_VARIABLE


def processes_of(homes: Iterable[Path]) -> list[int]:
    """The pids of all processes of the workers with these homes, but for this one.

    A zombie has no environment any more, and those of other users are none of ours.
    """
    marks = {f"{HOME_VARIABLE}={home}".encode() for home in homes}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if not marks.isdisjoint(_environment(entry).split(b"\0")):
                    found.append(int(entry.name))
    return found


def _environment(process: Path) -> bytes:
    """Its environment; one in the middle of an exec has none for a moment, and is looked at again."""
    for _ in range(100):
        if content := (process / "environ").read_bytes():
            return content
        (process / "exe").readlink()  # a kernel thread and a zombie have none: they are left out here
        time.sleep(0.001)
    return b""


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
