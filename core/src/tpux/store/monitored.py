"""`monitored.json` of a job: what monitors found last on each worker while the current attempt runs. A cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.model.failures import Finding
from tpux.model.json import build, dump
from tpux.store import files

if TYPE_CHECKING:
    from tpux.store.state import State

FILE = "monitored.json"


def save(directory: Path, attempt: int, found: Mapping[int, Sequence[Finding]]) -> None:
    """Replace the file; it is not synced.

    Args:
        directory: the job's directory.
        attempt: the attempt that runs.
        found: what was found, by worker.

    Raises:
        OSError: it could not be written.
    """
    data = files.dump({"attempt": attempt, "workers": {str(index): dump([*each]) for index, each in found.items()}})
    files.write_atomic(directory / FILE, data, durable=False)


def load(directory: Path, state: State) -> dict[int, list[Finding]]:
    """Return what was found last, by worker; nothing if the attempt has ended.

    Args:
        directory: the job's directory.
        state: the job's state.
    """
    data = (files.load(directory / FILE) or {}) if state.attempt_open else {}
    workers = data.get("workers")
    if data.get("attempt") != state.attempt or not isinstance(workers, dict):
        return {}
    try:
        return {
            int(index): [build(Finding, finding) for finding in each if isinstance(finding, dict)]
            for index, each in workers.items()
            if isinstance(each, list)
        }
    except ValueError:  # written by another version
        return {}
