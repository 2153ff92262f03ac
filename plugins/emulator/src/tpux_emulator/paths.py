"""Where an emulator keeps what it must remember."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HOME = "TPUX_EMULATOR_HOME"


def default_home() -> Path:
    """`$TPUX_EMULATOR_HOME`, else `emulator` in `$TPUX_HOME`, which is `~/.tpux` by default."""
    if home := os.environ.get(HOME):
        return Path(home).expanduser().absolute()
    return Path(os.environ.get("TPUX_HOME") or "~/.tpux").expanduser().absolute() / "emulator"


@dataclass(frozen=True)
class Home:
    """The directory of one emulator.

    Args:
        path: the directory; made, with mode 0700, when an emulator starts.
    """

    path: Path

    @property
    def lock(self) -> Path:
        """Held while the emulator runs; never unlinked."""
        return self.path / "lock"

    @property
    def state(self) -> Path:
        """The cloud's memory: an SQLite file."""
        return self.path / "state.db"

    @property
    def state_files(self) -> list[Path]:
        """The memory's file and those that SQLite keeps beside it."""
        return [self.state.with_name(self.state.name + suffix) for suffix in ("", "-wal", "-shm")]

    @property
    def server(self) -> Path:
        """Where the running emulator listens, as JSON; of use only while the lock is held."""
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        """What the emulator was asked and answered, and what it did on its own."""
        return self.path / "emulator.log"

    @property
    def console(self) -> Path:
        """What a detached emulator wrote to its standard output and error."""
        return self.path / "console"

    @property
    def workers(self) -> Path:
        """A directory for each worker: its disk and its console's output."""
        return self.path / "workers"

    def make(self) -> None:
        """Make the directory, for its owner alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
