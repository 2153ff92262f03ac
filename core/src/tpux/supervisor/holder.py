"""Who holds the supervisor's lock: its content, and a sign of life for machines between which locks do not work."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from tpux import env
from tpux.clock import Clock
from tpux.store.locks import Lock
from tpux.supervisor.client import Installation

BEAT = 5.0
"""Seconds between two signs of life."""
SILENT_AFTER = 15.0
"""Seconds without one after which a supervisor of another machine counts as ended."""


def machine() -> dict[str, str]:
    """Return what identifies this machine in the lock file: its host name, and its id where it has one."""
    try:
        machine_id = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine_id = ""
    return {"host": os.uname().nodename, "machine": machine_id}


def describe(lock: Lock) -> None:
    """Write who this process is into the lock that it holds.

    Raises:
        OSError: it could not be written.
    """
    status = {
        "pid": os.getpid(),
        **machine(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": env.supervisor_environment(os.environ),
        "installation": asdict(Installation.current()),
    }
    lock.annotate(json.dumps(status) + "\n")


def other_host(path: Path) -> str:
    """Return the host in a lock file that another machine has written; "" if this one has, or its holder has ended."""
    try:
        data = json.loads(path.read_text())
        written = {name: str(data[name]) for name in ("host", "machine")}
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if written == machine() else written["host"]


def alive_elsewhere(path: Path, clock: Clock) -> str:
    """Return the host of a supervisor that lives on another machine; "" if there is none.

    Some network file systems have locks that are valid on one machine only. So a lock that is free here may be held by
    a supervisor of another machine: then its file changes every `BEAT`. The machines' clocks may differ.

    Args:
        path: the supervisor's lock file.
        clock: to wait for a sign of life.
    """
    if not (host := other_host(path)):
        return ""
    deadline, first = clock.monotonic() + SILENT_AFTER, path.stat().st_mtime_ns
    while clock.monotonic() < deadline:
        clock.sleep(0.2)
        if not (host := other_host(path)):
            return ""
        if path.stat().st_mtime_ns != first:
            return host
    return ""


class SignOfLife:
    """Changes the time of the lock file, and watches that no other machine takes the lock over.

    Args:
        path: the supervisor's lock file.
        clock: when the next sign is due.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._next = 0.0

    def give(self) -> str:
        """Give a sign of life if it is time to.

        Returns:
            The host that has taken the lock over, because this machine was suspended, say; "" if none has.
        """
        if self._clock.monotonic() < self._next:
            return ""
        self._next = self._clock.monotonic() + BEAT
        if host := other_host(self._path):
            return host
        os.utime(self._path)
        return ""
