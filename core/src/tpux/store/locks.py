"""Locks between processes: a held lock says that its holder is alive; nothing guesses from a pid.

portalocker takes `flock` here, which the kernel drops with the last descriptor, however its holder ended.
Lock files are never unlinked: an unlinked one can be held by two processes at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tpux.errors import TpuxError


class Lock:
    """One lock file. Not re-entrant.

    Args:
        path: the lock file; made, with its directory, where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._file is not None

    @property
    def still_linked(self) -> bool:
        """Whether the file that this object holds still stands at its path: nobody removed it, or its directory."""
        if self._file is None:
            return False
        try:
            there = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def acquire(self) -> bool:
        """Take it if it is free; whether it was. Never waits."""
        import portalocker

        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.path.open("a+")
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Let go of it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def annotate(self, text: str) -> None:
        """Leave a word about the holder in the file, for people."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(text)
            self._file.flush()


@contextmanager
def held(path: Path, *, what: str, timeout: float = 30.0) -> Iterator[None]:
    """Hold the lock in `path`, waiting for it.

    Raises:
        TpuxError: another process held it for `timeout` seconds.
    """
    import portalocker

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = portalocker.Lock(path, mode="a", timeout=timeout, check_interval=0.01)
    try:
        lock.acquire()
    except portalocker.LockException as error:
        raise TpuxError(
            f"waited {timeout:.0f} s for {what}", where=str(path), hint="another tpux command holds it: try again"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock in `path` at this moment.

    By `flock` itself: every `tpux list` with live jobs asks, and portalocker's import takes longer than all else.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that only ask are not in each other's way
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
