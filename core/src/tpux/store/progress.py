"""`progress.json` of a job: how far the program of the current attempt has come. A cache of what its output says."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tpux.model.progress import Progress
from tpux.store import files

if TYPE_CHECKING:
    from pathlib import Path

    from tpux.model.json import JsonValue
    from tpux.store.state import State

FILE = "progress.json"
_FIELDS = {field.name for field in fields(Progress)}
_NUMBERS = {"step", "epoch", "first_step", "rate"}


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
    data = files.dump({"attempt": attempt, "at": at, **progress.to_json()})
    files.write_atomic(directory / FILE, data, durable=False)


def load(directory: Path, state: State) -> tuple[Progress, float | None]:
    """Return how far a job's program has come, and when that was read; None if the attempt has ended, or never.

    Args:
        directory: the job's directory.
        state: the job's state.
    """
    if not state.attempt_open:
        return state.progress or Progress(), None
    data = files.load(directory / FILE) or {}
    at = data.get("at")
    if data.get("attempt") != state.attempt or not isinstance(at, (int, float)):
        return Progress(), None
    known = {name: value for name, value in data.items() if name in _FIELDS and _is_valid(name, value)}
    return Progress(**known), at  # type: ignore[arg-type]


def _is_valid(name: str, value: JsonValue) -> bool:
    """Return whether a field has a value of its type; another one is left out, as what is unknown."""
    if name in _NUMBERS:
        return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return isinstance(value, bool if name == "compiling" else str)
