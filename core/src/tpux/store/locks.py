"""Locks between processes: a lock is held as long as its holder lives; nothing is guessed from a process id.

portalocker uses `flock` here, which the kernel releases with the last descriptor, even after SIGKILL.
Lock files are never unlinked: two processes could hold one that was unlinked and created again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

from tpux.console import waiting_for
from tpux.errors import TpuxError
from tpux.store import files

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""The errors of a file system that has no locks, or whose lock manager does not answer."""


VALID_HERE_ONLY = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock"})
"""The options of a mounted NFS or Lustre whose locks exclude nobody on other machines."""


class UnusableLocksError(TpuxError):
    """The locks of a file system do not work."""


class Lock:
    """One lock file. Not re-entrant.

    Args:
        path: the lock file; created with its directory if it does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self._name = os.fspath(path)
        self._file: IO[str] | None = None

    @property
    def path(self) -> Path:
        """The lock file."""
        return Path(self._name)

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        return self._file is not None

    @property
    def still_linked(self) -> bool:
        """True if this object holds the lock, and its file and directory still exist.

        Raises:
            OSError: that cannot be read.
        """
        if self._file is None:
            return False
        try:
            there = os.stat(self._name)  # noqa: PTH116  (called often)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def acquire(self) -> bool:
        """Take the lock without waiting.

        Returns:
            True if it was free.

        Raises:
            UnusableLocksError: the file system has no locks, or they have no effect.
        """
        import portalocker

        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+")
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
            _check_effect(self.path)
        except portalocker.AlreadyLocked:
            file.close()
            return False
        except portalocker.LockException as error:
            file.close()
            raise _lock_error(self.path, error) from error
        except BaseException:
            file.close()
            raise
        self._file = file
        return True

    def pass_on(self) -> int:
        """Let the process that `os.execv` puts in this one's place hold the lock.

        Returns:
            The descriptor for `take_over`.

        Raises:
            ValueError: this object does not hold the lock.
        """
        if self._file is None:
            raise ValueError("the lock is not held")
        os.set_inheritable(self._file.fileno(), True)
        return self._file.fileno()

    def take_over(self, descriptor: int) -> bool:
        """Hold the lock that `pass_on` kept through `os.execv`. It is not free at any moment.

        Returns:
            True if the descriptor is one of this lock file, and holds the lock.
        """
        try:
            os.set_inheritable(descriptor, False)
            if not os.path.samestat(self.path.stat(), os.fstat(descriptor)):
                return False
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._file = os.fdopen(descriptor, "a+")
        return True

    def release(self) -> None:
        """Release the lock, if it is held, also from a child process that was forked and has not called exec yet."""
        if self._file is not None:
            with suppress(OSError):  # closing releases it too
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def annotate(self, text: str) -> None:
        """Replace the content of the file, which describes the holder; in place, so that it works on a full disk."""
        if self._file is not None:
            with self.path.open("r+b") as file:  # what this object has open only appends
                file.write(text.encode())
                file.truncate()


@contextmanager
def held(path: Path, *, what: str, timeout: float = 30.0) -> Iterator[None]:
    """Hold the lock at `path`, and wait for it if another process holds it.

    Args:
        path: the lock file; created with its directory if it does not exist.
        what: what is waited for, for messages.
        timeout: seconds to wait.

    Raises:
        TpuxError: another process held it for `timeout` seconds.
        UnusableLocksError: the file system has no locks, or they have no effect.
    """
    import portalocker

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = portalocker.Lock(path, mode="a", timeout=timeout, check_interval=0.01)
    try:
        with waiting_for(lambda: f"{what}, which another process holds: {path}"):
            lock.acquire()
    except portalocker.AlreadyLocked as error:
        raise TpuxError(
            f"waited {timeout:.0f} s for {what}", where=str(path), hint="another tpux command holds it: try again"
        ) from error
    except portalocker.LockException as error:
        raise _lock_error(path, error) from error
    try:
        _check_effect(path)
        yield
    finally:
        lock.release()


def is_free(path: Path) -> bool:
    """Return whether the lock at `path` is free.

    Uses `flock` directly: every `tpux list` with live jobs comes here, and the import of portalocker is slow.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two callers do not see each other
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        raise _lock_error(path, error) from error
    return True


def _lock_error(path: Path, error: Exception) -> Exception:
    """Return the error to raise for a lock that could not be taken although it may be free."""
    cause = (
        error if isinstance(error, OSError) else next((one for one in error.args if isinstance(one, OSError)), error)
    )
    if isinstance(cause, OSError) and cause.errno not in NO_LOCKS:
        return cause
    return _unusable(path, str(getattr(cause, "strerror", None) or cause))


def _unusable(path: Path, why: str) -> UnusableLocksError:
    """Return the error for a file system whose locks do not work."""
    hint = "on NFS its lock service must run; or set TPUX_HOME to a directory on a local disk (docs/failures.md)"
    return UnusableLocksError(f"the file system cannot lock files: {why}", where=str(path), hint=hint)


def _check_effect(path: Path) -> None:
    """Check that a lock that this process holds excludes others.

    Raises:
        UnusableLocksError: it does not: two supervisors would drive the same jobs.
    """
    with path.open("rb") as file, suppress(BlockingIOError):
        if option := _option_without_effect(os.fstat(file.fileno()).st_dev):
            raise _unusable(path, f"it is mounted with {option}, so other machines do not see its locks")
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # of another open file, so it conflicts within a process too
        raise _unusable(path, "a lock that is held has no effect")


@lru_cache
def _option_without_effect(device: int) -> str:
    """Return the option with which a file system is mounted and that keeps locks from other machines; "" if none."""
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = files.MOUNTS.read_text(errors="surrogateescape").splitlines() if files.MOUNTS.exists() else []
    mounted = [fields for fields in map(str.split, lines) if fields[2] == number]
    options = {option for fields in mounted for option in fields[-1].split(",")}
    return min(options & VALID_HERE_ONLY, default="")
