"""Who holds the supervisor's lock, as its file describes it.

Light, since every command imports it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.model.json import build

if TYPE_CHECKING:
    from tpux.store.locks import Lock

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
        boot: the id of the boot of the machine that it runs on; "" if an older version has written it.
        began: when the process began, in ticks since that boot.
    """

    pid: int
    started: str
    environment: Mapping[str, str]
    installation: Installation
    boot: str = ""
    began: int = 0

    def differences(self) -> list[str]:
        """Return the variables that have another value in this process, or are set in one of the two only."""
        own = env.supervisor_environment(os.environ)
        names = (own.keys() | self.environment.keys()) - {env.HOME, env.USER}  # the store's, which is the same
        return sorted(name for name in names if own.get(name) != self.environment.get(name))

    def public_environment(self) -> dict[str, str]:
        """Return the environment without the passwords in the URLs of proxies."""
        return {name: re.sub(r"://[^/@\s]*@", "://***@", value) for name, value in self.environment.items()}


def describe(lock: Lock) -> None:
    """Write who this process is into the lock that it holds.

    Raises:
        OSError: it could not be written.
    """
    from datetime import UTC, datetime

    status = {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": env.supervisor_environment(os.environ),
        "installation": asdict(Installation.current()),
        "boot": boot_id(),
        "began": _began(os.getpid()),
    }
    lock.annotate(json.dumps(status) + "\n")


def boot_id() -> str:
    """Return the id of this machine's boot, which no other machine has; "" on a system other than Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _began(pid: int) -> int:
    """Return when a process began, in ticks since the boot; 0 if it does not exist."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except OSError:
        return 0


def kill_holder(lock: Path) -> int:
    """Send SIGKILL to the supervisor, if it is certain that its process is the one that holds the lock.

    Returns:
        Its process id; 0 if that is not certain: it runs on another machine or in another container, or has ended.
    """
    import signal

    status = read_status(lock)
    if status is None or not status.boot or status.boot != boot_id() or not hasattr(os, "pidfd_open"):
        return 0
    try:
        handle = os.pidfd_open(status.pid)
    except OSError:
        return 0
    try:  # what is true of the process now is true of the handle: its id is not used again while there is one
        if status.began != _began(status.pid) or not _has_open(status.pid, lock):
            return 0
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return 0
    finally:
        os.close(handle)
    return status.pid


def _has_open(pid: int, lock: Path) -> bool:
    """Return whether a process has the file of the lock open, locked.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if os.path.samestat(file.stat(), lock.stat()):
                return "FLOCK" in Path(f"/proc/{pid}/fdinfo/{file.name}").read_text()
    return False


def read_status(lock: Path) -> Status | None:
    """Return what the lock file says; None if that cannot be read."""
    try:
        return build(Status, json.loads(lock.read_text()))
    except (OSError, ValueError, TypeError):
        return None
