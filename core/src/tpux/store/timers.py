"""`timers.json` of a job: what a later supervisor must know about the workers, and no event has.

It is a file and not an event, since it changes often and may be lost: a worker then only counts as lost later. The
counts are valid for the attempt and the round of set-up in which they were made; which workers were ever reached is
valid until the next allocation, and is removed before that is written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store.state import State

_log = logging.getLogger(__name__)

FILE = "timers.json"
SAVE_EVERY = 10.0
"""Seconds of observed time that a supervisor that dies may lose."""


@dataclass(frozen=True)
class Timers:
    """For how long conditions were observed to last, and which workers have answered.

    Attributes:
        round: the round of set-up in which the time was counted.
        attempt: the attempt in which it was counted.
        seconds: for how long conditions were observed to last, by name.
        reached: the workers that have answered since the machines were allocated.
    """

    round: int = 0
    attempt: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    reached: tuple[int, ...] = ()

    @classmethod
    def load(cls, directory: Path, state: State) -> Timers:
        """Return what was saved for a job; time that was counted in another attempt or round is left out."""
        saved = JsonFile(directory / FILE, cls).load() or cls()
        current = (saved.round, saved.attempt) == (state.round, state.attempt)
        return cls(state.round, state.attempt, saved.seconds if current else {}, saved.reached)

    def replace_with(self, current: Timers, directory: Path) -> Timers:
        """Write the current timers in place of these, if they differ enough, and return those on the disk.

        An error is logged: without the file a worker would only count as lost later, so a full disk does no harm.
        """
        if not self._differs(current):
            return self
        try:
            current.save(directory)
        except OSError as error:
            _log.warning("job %s: cannot write what was observed of its workers: %s", directory.name, error)
            return self
        return current

    def _differs(self, current: Timers) -> bool:
        names = {*self.seconds, *current.seconds}
        moved = any(abs(current.seconds.get(name, 0.0) - self.seconds.get(name, 0.0)) >= SAVE_EVERY for name in names)
        return moved or self.reached != current.reached

    def save(self, directory: Path) -> None:
        """Write them, atomically.

        Raises:
            OSError: they could not be written.
        """
        JsonFile(directory / FILE, Timers).save(self)

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove the file, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        JsonFile(directory / FILE, Timers).remove()
