"""Whether a run on this machine continues silently: read from its files, without a process and without a connection."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpux.remote.process import RemoteProcess


@dataclass(frozen=True)
class LocalRun:
    """A run whose worker is this machine.

    Its paths are strings, since many jobs are polled each second.

    Attributes:
        output: its output on the worker.
        log: what was fetched of it.
        lock: the file whose lock its runner holds.
        news: files that are there once something has happened.
    """

    output: str
    log: str
    lock: str
    news: tuple[str, ...]

    @classmethod
    def at(cls, home: Path, run: RemoteProcess, log: Path) -> LocalRun:
        """Return a run by its worker's home directory and its log."""
        news = (f"{home}/{run.exit}", f"{home}/{run.notice}")
        return cls(f"{home}/{run.output}", str(log), f"{home}/{run.directory}/lock", news)

    def is_silent(self) -> bool:
        """Return whether all of its output was fetched, and neither its end nor a notice is recorded."""
        with suppress(OSError):
            output, log = os.stat(self.output), os.stat(self.log)  # noqa: PTH116  (called often)
            # A program that truncates its output may have written as much again.
            same = output.st_size == log.st_size and output.st_mtime_ns <= log.st_mtime_ns
            return same and not any(map(os.path.exists, self.news))
        return False

    def has_runner(self) -> bool:
        """Return whether its runner lives, which `scripts/probe.sh` asks of a worker elsewhere."""
        with suppress(OSError):
            lock = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
        return False
