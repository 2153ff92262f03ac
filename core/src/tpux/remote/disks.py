"""Whether a disk of a worker was full when a step failed, as `scripts/disks.sh` has seen it."""

from __future__ import annotations

import re

from tpux.console import format_size
from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import OpenHost
from tpux.remote.script import source

LEAST = 1024
"""KiB that are left on a disk that is not full."""
_LINE = re.compile(r"^\S.* +([1-9]\d*) +\d+ +(\d+) +\d+% +(/.*?) *$", re.MULTILINE)
_ERRORS = re.compile(rb"No space left on device|Disk quota exceeded")
_SAID = re.compile(r"^tpux: (the disk of worker \d+ is full .*|a disk of worker \d+ was full .*)$", re.MULTILINE)


def find_full(worker: int, listed: str, output: bytes) -> str:
    """Return which disk of a worker is full, for people; "" if none is, and none was.

    Args:
        worker: the worker's number.
        listed: what `scripts/disks.sh` printed when the step had failed: its first two disks are used by every step.
        output: the step's output. It may be about files that the step has deleted at its end.
    """
    lines = [(place, int(size) * 1024, int(free) * 1024) for size, free, place in _LINE.findall(listed)]
    noticed = _ERRORS.search(output) is not None
    used = lines if noticed else lines[:2]
    if full := _list([each for each in used if each[2] < min(LEAST * 1024, each[1])]):
        return f"the disk of worker {worker} is full ({full})"
    return f"a disk of worker {worker} was full (now {_list(lines[:2])})" if noticed and lines else ""


def _list(disks: list[tuple[str, int, int]]) -> str:
    """Return free space and size of disks; one that is mounted at several places once."""
    places = {(size, free): place for place, size, free in reversed(disks)}
    return ", ".join(f"{place}: {_share(free, size)}" for (size, free), place in reversed(places.items()))


def _share(free: int, size: int) -> str:
    number, unit = format_size(free).split()
    whole, larger = format_size(size).split()
    if format_size(free // 1_000_000 * 1_000_000) == "0 B":
        return f"0 of {whole} {larger}"
    return f"{number} of {whole} {larger}" if unit == larger else f"{number} {unit} of {whole} {larger}"


def full_now(host: OpenHost, output: str) -> str:
    """Return which disk of a worker is full now, as after a failure with this output; "" if that cannot be asked."""
    try:
        listed = host.run(source("disks") + "disks", timeout=30.0).output.decode(errors="replace")
    except HostUnreachableError:
        raise
    except TpuxError:
        return ""
    return find_full(host.worker.index, listed, output.encode())


def said(output: str) -> str:
    """Return what tpux has appended to the output of a failed step; "" if no disk was full."""
    found: list[str] = _SAID.findall(output)
    return found[-1] if found else ""
