"""`monitored.json` of a job: what monitors found last on each worker while the current attempt runs. A cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.model.failures import Finding
from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store.state import State

FILE = "monitored.json"


@dataclass(frozen=True)
class _Found:
    attempt: int
    workers: Mapping[int, tuple[Finding, ...]]


def save(directory: Path, attempt: int, found: Mapping[int, Sequence[Finding]]) -> None:
    """Replace the file; it is not synced.

    Args:
        directory: the job's directory.
        attempt: the attempt that runs.
        found: what was found, by worker.

    Raises:
        OSError: it could not be written.
    """
    _file(directory).save(_Found(attempt, {index: tuple(each) for index, each in found.items()}))


def load(directory: Path, state: State) -> dict[int, list[Finding]]:
    """Return what was found last, by worker; nothing if the attempt has ended.

    Args:
        directory: the job's directory.
        state: the job's state.
    """
    found = _file(directory).load() if state.attempt_open else None
    if found is None or found.attempt != state.attempt:
        return {}
    return {index: [*each] for index, each in found.workers.items()}


def _file(directory: Path) -> JsonFile[_Found]:
    return JsonFile(directory / FILE, _Found, durable=False)
