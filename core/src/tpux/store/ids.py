"""Job ids: counted up over all users of a store, six digits or more.

The file `next_id` holds the next number. Numbers whose job exists are skipped, so neither a crash between the creation
of a job and the update of the file, nor the loss of the file, can give a job the id of another one.
Whoever calls `allocate` and `advance` holds the store's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tpux.store import files
from tpux.store.published import HIGHEST, File, reached

DIGITS = 6
LONGEST = 18
"""Digits of the longest number that is looked up as an id: a much longer one could not be the name of a directory."""


def normalize(job: str) -> str:
    """Return the id that a user means by a number without its leading zeros."""
    return job.zfill(DIGITS)


def allocate(counter: Path, existing: Callable[[], Iterable[str]], taken: Callable[[str], bool]) -> str:
    """Return the next free id.

    Args:
        counter: the file that holds the next number.
        existing: gives the ids of all jobs in the store; called if the counter cannot be read.
        taken: tells whether the job of an id exists.
    """
    try:
        number = int(counter.read_text())
    except (FileNotFoundError, ValueError):
        number = 1 + max(map(int, existing()), default=0)
    while taken(f"{number:0{DIGITS}d}"):
        number += 1
    return f"{number:0{DIGITS}d}"


def next_of(counters: Iterable[File], taken: Callable[[str], bool]) -> str:
    """Return the next free id, given the files of several users; one that is no number is left out.

    Raises:
        TpuxError: another user has published a number that nobody can have reached.
    """
    numbers = [reached(file, _int(digits), "job") for file in counters if (digits := file.content.strip()).isdigit()]
    number = max(numbers, default=1)
    while taken(f"{number:0{DIGITS}d}"):
        number += 1
    return f"{number:0{DIGITS}d}"


def _int(digits: bytes) -> int:
    return int(digits) if len(digits) <= LONGEST * 2 else HIGHEST + 1  # Python refuses very long ones


def advance(counter: Path, job: str) -> None:
    """Note that the id of a job is used, once the job exists."""
    with suppress(OSError):  # the job exists: the next `allocate` skips its id
        files.write_atomic(counter, f"{int(job) + 1}\n".encode())
