"""Which jobs are open: not done, or with machines that cost money. `tpux list` reads only these and the newest others.

A mark is an empty file. It is made before the event that opens a job, and removed after the one that closes it: a crash
leaves a mark too many, and never one too few.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.store.state import State

COMPLETE = ".complete"
"""The file that says that all open jobs of a user are marked: those of an older tpux were looked for."""


def is_open(state: State) -> bool:
    """Return whether a job is open. Machines that cost nothing do not count: nobody looks for them."""
    free = state.allocation is not None and not state.allocation.get("costs")
    return not state.done or (state.requested and not free)


def mark_of(job: str) -> str:
    """Return the mark of a job.

    Args:
        job: its directory.
    """
    jobs, user, name = job.rsplit("/", 2)
    return f"{jobs}/.tpux/open/{user}/{name.removeprefix('.new-')}"


def mark(path: str) -> None:
    """Make a mark; one that is there already remains.

    Raises:
        OSError: it cannot be made.
    """
    if not os.path.exists(path):  # noqa: PTH110  (asked for each job)
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(path).touch(mode=0o600)


def unmark(path: str) -> None:
    """Remove a mark, if that is possible."""
    with suppress(OSError):
        Path(path).unlink()
