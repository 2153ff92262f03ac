"""The directory of an emulator and its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HOME = "TPUX_EMULATOR_HOME"


def default_home() -> Path:
    """Return `$TPUX_EMULATOR_HOME`, or `emulator` in `$TPUX_HOME` (default `~/.tpux`)."""
    if home := os.environ.get(HOME):
        return Path(home).expanduser().absolute()
    return Path(os.environ.get("TPUX_HOME") or "~/.tpux").expanduser().absolute() / "emulator"


@dataclass(frozen=True)
class Home:
    """The directory of one emulator.

    Args:
        path: the directory; created with mode 0700 when an emulator starts.
    """

    path: Path

    @property
    def lock(self) -> Path:
        """The lock file, which is locked while the emulator runs and never deleted."""
        return self.path / "lock"

    @property
    def state(self) -> Path:
        """The state of the cloud: an SQLite database."""
        return self.path / "state.db"

    @property
    def state_files(self) -> list[Path]:
        """The database with the files that SQLite keeps beside it."""
        return [self.state.with_name(self.state.name + suffix) for suffix in ("", "-wal", "-shm")]

    @property
    def server(self) -> Path:
        """URL, process id and so on of the running emulator, as JSON; valid only while the lock is held."""
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        """The log."""
        return self.path / "emulator.log"

    @property
    def console(self) -> Path:
        """The standard output and error of a detached emulator."""
        return self.path / "console"

    @property
    def workers(self) -> Path:
        """The directory with a directory per worker: its disk and its console output."""
        return self.path / "workers"

    @property
    def pods(self) -> Path:
        """The directory with a directory per pod of the Kubernetes API."""
        return self.path / "pods"

    @property
    def kubernetes(self) -> Path:
        """The directory with the certificates and the token of the Kubernetes API."""
        return self.path / "kubernetes"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the Kubernetes API; the files that it names are beside it."""
        return self.path / "kubeconfig"

    @property
    def image(self) -> Path:
        """The files that new workers have, in addition to those of this machine; the user may create it."""
        return self.path / "image"

    @property
    def shared(self) -> Path:
        """A directory that all workers have in common, as a file server's; the user may create it."""
        return self.path / "shared"

    def make(self) -> None:
        """Create the directory with mode 0700."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
