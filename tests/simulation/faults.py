"""What goes wrong, and where: a point is a place in the code and the job's state, and a fault happens at one."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TypeVar

T = TypeVar("T")
BEFORE, AFTER = "before", "after"
COMMON = (
    "death before",
    "death after",
    "death with the shell before",
    "death with the shell after",
    "error before",
    "error after",
    "hang",
    "full disk",
    "preemption",
    "suspend",
)
KINDS: dict[str, tuple[str, ...]] = {
    "store": (*COMMON, "death in the middle"),
    "allocator": (*COMMON, "late effect"),
    "worker": (*COMMON, "cut", "wiped"),
}
"""The faults of each class of places."""
HANG, FULL, SUSPEND, CUT = 120.0, 600.0, 3600.0, 300.0
"""Seconds for which each of these lasts."""


class DeathError(KeyboardInterrupt):
    """The process dies here. As of a Ctrl-C, no boundary catches it."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        point: `class: place @state`.
        kind: one of `KINDS`.
        hit: at which visit of the point, from 1.
    """

    point: str
    kind: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.kind} | {self.point}" + (f" | {self.hit}" if self.hit > 1 else "")


def parse(text: str) -> Fault:
    """Return the fault that a text describes, as `str` has returned it."""
    kind, point, *hit = text.split(" | ")
    return Fault(point, kind, int(hit[0]) if hit else 1)


class Disk:
    """The system calls by which the store changes something, each a point.

    Args:
        home: the directory of the store.
        at: makes a call at a point: its place, the call, and a variant of it that is cut off in the middle.
    """

    def __init__(
        self, home: str, at: Callable[[str, Callable[[], object], Callable[[], object] | None], object]
    ) -> None:
        self._home, self._at = home, at

    @contextmanager
    def installed(self) -> Iterator[None]:  # noqa: C901  (a function for each call)
        real = {name: getattr(os, name) for name in ("write", "replace", "rename", "unlink", "fsync", "fdopen")}

        def write(fd: int, data: bytes) -> int:
            if not (path := self._path(fd)):
                return real["write"](fd, data)
            place = f"write {_name(path)}{_event(path, bytes(data[:80]))}"
            half = data[: len(data) // 2]
            return self._at(place, lambda: real["write"](fd, data), lambda: real["write"](fd, half))

        def fsync(fd: int) -> None:
            if not (path := self._path(fd)):
                return real["fsync"](fd)
            return self._at(f"sync {_name(path)}", lambda: real["fsync"](fd), None)

        def fdopen(fd: int, mode: str = "r", buffering: int = -1, **options: object) -> object:
            opened = real["fdopen"](fd, mode, buffering, **options)
            return _Unbuffered(opened) if buffering == 0 and "w" in mode and self._path(fd) else opened

        def moved(name: str) -> Callable[..., object]:
            def move(source: str, target: str, **options: object) -> object:
                if options or not os.fspath(source).startswith(self._home):
                    return real[name](source, target, **options)
                return self._at(f"{name} {_name(os.fspath(target))}", lambda: real[name](source, target), None)

            return move

        def unlink(path: str, **options: object) -> object:
            text = os.fspath(path)
            if options or not isinstance(text, str) or not text.startswith(self._home) or not os.path.exists(text):  # noqa: PTH110
                return real["unlink"](path, **options)
            return self._at(f"unlink {_name(text)}", lambda: real["unlink"](path), None)

        replaced = {"write": write, "fsync": fsync, "replace": moved("replace"), "rename": moved("rename")}
        for name, function in {**replaced, "unlink": unlink, "fdopen": fdopen}.items():
            setattr(os, name, function)
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    def _path(self, fd: int) -> str:
        """Return the path of a file of the store; "" if it is none."""
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
            if path.startswith(self._home):
                return path
        return ""


class _Unbuffered:
    """A file whose writes are calls of `os.write`, which can go wrong."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return os.write(self._file.fileno(), data)

    def __enter__(self) -> _Unbuffered:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _name(path: str) -> str:
    """Return the file's name without numbers and what `mkstemp` has added, so that each life has the same points."""
    directory, _, name = path.rpartition("/")
    if name.startswith(".deleted-"):
        return ".deleted-N"
    if re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}", name):
        name = name[1:-9] + " (draft)"
    parent = directory.rpartition("/")[2]
    if name in {"wake", "log"}:
        name = f"{parent}/{name}"
    return re.sub(r"\d+", "N", name)


def _event(path: str, data: bytes) -> str:
    if not path.endswith("events.jsonl"):
        return ""
    kind = re.search(rb'"type": ?"([\w-]+)"', data)
    return f" {kind[1].decode()}" if kind else ""


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")
