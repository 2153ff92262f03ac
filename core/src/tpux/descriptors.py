"""Open files as a budget: each job that a supervisor drives holds a lock, each worker may have a connection.

The soft limit is raised for the supervisor only. Each child gets the original one back before it is executed, since
programs, and libraries that use select(2), rely on it; it is set by a shell, which then executes the child. (What runs
Python between fork and exec waits for the locks of all libraries, and prlimit(2) on a child comes too late.)
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence

RESERVE = 32
"""Descriptors that are kept for files and for the pipes of children; a quarter, if the limit is lower than 128."""
MOST = 65_536
"""The limit that is wanted: a library may close each descriptor below it in a child."""
_RESTORE = 'ulimit -S -n "$0" && exec "$@"'


class NoDescriptorError(OSError):
    """This process has too many open files. Some are closed at any moment."""

    def __init__(self) -> None:
        super().__init__(waiting())


def waiting() -> str:
    """Return what a job waits for, for people."""
    return f"waiting for a free descriptor (limit {_limit()})"


def is_short(*, urgent: bool = False) -> bool:
    """Return whether no connection may be opened, and no job adopted, unless it is urgent: to end one needs both."""
    reserve = min(RESERVE, _limit() // 4)
    return _are_open(_limit() - (reserve // 2 if urgent else reserve))


def is_half_used() -> bool:
    """Return whether half of the descriptors are in use. The jobs that are driven need the others for connections."""
    return _are_open(_limit() // 2)


def require(*, urgent: bool) -> None:
    """Raise an error if a further connection would leave too few descriptors.

    Raises:
        NoDescriptorError: it would.
    """
    if is_short(urgent=urgent):
        raise NoDescriptorError


def raise_limit() -> None:
    """Raise the soft limit of this process, and let each of its children have the original one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    popen, execv = subprocess.Popen.__init__, os.execv

    def start(self: subprocess.Popen[bytes], args: str | Sequence[str], *rest: object, **options: object) -> None:
        popen(self, _with_limit(args, soft, options), *rest, **options)  # type: ignore[call-overload]
        self.args = args

    def replace(path: str, arguments: list[str]) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            execv(path, arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    subprocess.Popen.__init__ = start  # type: ignore[method-assign,assignment]  # also those of libraries
    os.execv = replace  # type: ignore[assignment]


def _with_limit(args: str | Sequence[str], soft: int, options: dict[str, object]) -> str | Sequence[str]:
    """Return the arguments of a child that sets its limit, and then executes what it was to execute.

    A program that cannot be found is left to `Popen`, which says so.
    """
    command = [args] if isinstance(args, (str, bytes, os.PathLike)) else [*args]
    if options.pop("shell", False):
        command = [str(options.pop("executable", None) or "/bin/sh"), "-c", *command]
    elif (executable := options.pop("executable", None)) is not None:
        command[0] = os.fspath(executable)  # type: ignore[call-overload]
    environ = options.get("env") or os.environ
    path = environ.get("PATH")  # type: ignore[attr-defined]
    if shutil.which(command[0], path=path) is None and options.get("cwd") is None:
        return command
    return ["/bin/sh", "-c", _RESTORE, str(soft), *command]


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if soft == resource.RLIM_INFINITY else soft


def _are_open(number: int) -> bool:
    """Return whether so many descriptors are in use."""
    try:
        lowest = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # the lowest that is free
    except OSError:
        return True
    os.close(lowest)
    return lowest >= number
