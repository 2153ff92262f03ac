"""`progress.json` of a job: how far the program of the current attempt has come. A cache of what its output says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.model.progress import Progress
from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store.state import State

FILE = "progress.json"


@dataclass(frozen=True)
class _Saved:
    attempt: int
    at: float
    progress: Progress


def save(directory: Path, attempt: int, at: float, progress: Progress) -> None:
    """Replace the file; it is not synced.

    Args:
        directory: the job's directory.
        attempt: the attempt that has come so far.
        at: when its output was read, in seconds since the epoch.
        progress: how far.

    Raises:
        OSError: it could not be written.
    """
    _file(directory).save(_Saved(attempt, at, progress))


def load(directory: Path, state: State) -> tuple[Progress, float | None]:
    """Return how far a job's program has come, and when that was read; None if the attempt has ended, or never.

    Args:
        directory: the job's directory.
        state: the job's state.
    """
    if not state.attempt_open:
        return state.progress or Progress(), None
    saved = _file(directory).load()
    return (saved.progress, saved.at) if saved and saved.attempt == state.attempt else (Progress(), None)


def _file(directory: Path) -> JsonFile[_Saved]:
    return JsonFile(directory / FILE, _Saved, durable=False)
