"""Who holds the supervisor's lock, as its file describes it.

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
    }
    lock.annotate(json.dumps(status) + "\n")


def read_status(lock: Path) -> Status | None:
    """Return what the lock file says; None if that cannot be read."""
    try:
        return build(Status, json.loads(lock.read_text()))
    except (OSError, ValueError, TypeError):
        return None
