"""Standard output belongs to the command's data: what plugin code prints goes to stderr, also from child processes.

What Python code prints is redirected for the thread that runs plugin code. A child process inherits the file
descriptor 1 of the whole process. So the command line writes through a copy of that descriptor (`keep_stdout`), and
descriptor 1 itself is a copy of stderr while any thread runs plugin code.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

_plugin_code = threading.local()


class _Stdout:
    """A stand-in for sys.stdout, or its buffer, that sends what a thread writes while it runs plugin code to stderr."""

    def __init__(self, stdout: object, stderr: Callable[[], object]) -> None:
        self._stdout = stdout
        self._stderr = stderr

    def __getattr__(self, name: str) -> object:
        return getattr(self._stderr() if getattr(_plugin_code, "depth", 0) else self._stdout, name)

    @property
    def buffer(self) -> _Stdout:
        """The binary stream below; click keeps it if the encoding is ASCII."""
        return _Stdout(cast("TextIO", self._stdout).buffer, lambda: sys.stderr.buffer)


class _Descriptor:
    """The descriptor 1 of this process: stdout, or a copy of stderr while it is redirected.

    Attributes:
        kept: a copy of stdout; None if this process writes to descriptor 1 itself, which is then left as it is.
    """

    def __init__(self) -> None:
        self.kept: int | None = None
        self._lock = threading.Lock()
        self._redirected = 0

    def redirect(self) -> None:
        """Redirect it, until `restore` was called as often."""
        with self._lock:
            self._redirected += 1
            if self._redirected == 1 and self.kept is not None:
                os.dup2(2, 1)

    def restore(self) -> None:
        """Undo one call of `redirect`."""
        with self._lock:
            self._redirected -= 1
            if not self._redirected and self.kept is not None:
                os.dup2(self.kept, 1)


_descriptor = _Descriptor()


def keep_stdout() -> None:
    """Let this process write its stdout through a copy of descriptor 1. Called once, before any other thread starts.

    What whoever started this process has closed is opened as /dev/null: Python has no stream for it, and the next file
    would get its descriptor.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    kept, stdout = os.dup(1), sys.stdout
    stdout.flush()
    sys.stdout = os.fdopen(
        os.dup(kept), "w", buffering=1 if stdout.isatty() else -1, encoding=stdout.encoding, errors=stdout.errors
    )
    _descriptor.kept = kept


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what this thread prints to stderr, and so what child processes print that any thread starts meanwhile.

    `contextlib.redirect_stdout` would redirect what all threads print.
    """
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast("TextIO", _Stdout(sys.stdout, lambda: sys.stderr))
    _plugin_code.depth = getattr(_plugin_code, "depth", 0) + 1
    _descriptor.redirect()
    try:
        yield
    finally:
        _descriptor.restore()
        _plugin_code.depth -= 1


@contextmanager
def own_stdout() -> Iterator[None]:
    """Let this thread print to stdout again, in a callback that plugin code calls."""
    depth, _plugin_code.depth = getattr(_plugin_code, "depth", 0), 0
    try:
        yield
    finally:
        _plugin_code.depth = depth
