"""Who holds the supervisor's lock: what its file says, and a sign of life for machines between which locks do not work.

Light, since every command imports it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.clock import Clock

if TYPE_CHECKING:
    from tpux.store.locks import Lock

BEAT = 5.0
"""Seconds between two signs of life."""
SILENT_AFTER = 15.0
"""Seconds without one after which a supervisor of another machine counts as ended."""
PACKAGE = str(Path(__file__).parents[1])
"""The directory of the package tpux."""


@dataclass(frozen=True)
class Installation:
    """An installation of tpux.

    Attributes:
        version: of tpux-core.
        prefix: the Python environment.
        package: the directory of the package tpux; an editable install has it outside of `prefix`.
    """

    version: str
    prefix: str
    package: str

    @classmethod
    def current(cls) -> Installation:
        """Return the installation of this process."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return cls(version("tpux-core"), sys.prefix, PACKAGE)
        except PackageNotFoundError:
            return cls("(unknown version)", sys.prefix, PACKAGE)

    def is_here(self) -> bool:
        """Return whether this process runs from the same place. Its version may be another, during an upgrade."""
        return (self.prefix, self.package) == (sys.prefix, PACKAGE)

    def __str__(self) -> str:
        inside = Path(self.package).is_relative_to(self.prefix)
        return f"tpux {self.version} of {self.prefix}" + ("" if inside else f" (code in {self.package})")


@dataclass(frozen=True)
class Status:
    """The running supervisor, as its lock file describes it.

    Attributes:
        started: when it took its lock, as ISO 8601.
        environment: the environment that it was started with.
        installation: the code that it runs.
    """

    pid: int
    started: str
    environment: Mapping[str, str]
    installation: Installation

    def differences(self) -> list[str]:
        """Return the variables that have another value in this process, or are set in one of the two only."""
        own = env.supervisor_environment(os.environ)
        names = (own.keys() | self.environment.keys()) - {env.HOME, env.USER}  # the store's, which is the same
        return sorted(name for name in names if own.get(name) != self.environment.get(name))

    def public_environment(self) -> dict[str, str]:
        """Return the environment without the passwords in the URLs of proxies."""
        return {name: re.sub(r"://[^/@\s]*@", "://***@", value) for name, value in self.environment.items()}


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
    from datetime import UTC, datetime

    status = {
        "pid": os.getpid(),
        **machine(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": env.supervisor_environment(os.environ),
        "installation": asdict(Installation.current()),
    }
    lock.annotate(json.dumps(status) + "\n")


def read_status(lock: Path) -> Status | None:
    """Return what the lock file says; None if that cannot be read."""
    try:
        data = json.loads(lock.read_text())
        installation = Installation(**data["installation"])
        return Status(int(data["pid"]), str(data["started"]), dict(data["environment"]), installation)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def other_host(path: Path) -> str:
    """Return the host in a lock file that another machine has written; "" if this one has, or its holder has ended."""
    try:
        data = json.loads(path.read_text())
        written = {name: str(data[name]) for name in ("host", "machine")}
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if written == machine() else written["host"]


def active_on_other_host(path: Path, clock: Clock) -> str:
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


class Heartbeat:
    """Changes the time of the lock file, and watches that no other machine takes the lock over.

    Args:
        path: the supervisor's lock file.
        clock: when the next sign is due.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._next = 0.0

    def beat(self) -> str:
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
