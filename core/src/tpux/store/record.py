"""A job's directory: read by anyone, written by the one that holds its lock."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.store import events, files, requests
from tpux.store.events import Event
from tpux.store.locks import Lock
from tpux.store.state import State, apply_event

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

_log = logging.getLogger(__name__)


class Record:
    """A job on disk.

    Args:
        directory: its directory.
        lock: its lock; whoever calls `write` holds it.

    Attributes:
        events_path: where all that happened is.
    """

    def __init__(self, directory: Path, lock: Lock) -> None:
        self.directory = directory
        self.lock = lock
        self.events_path = directory / "events.jsonl"
        self._state: State | None = None
        self._offset = 0

    @property
    def id(self) -> str:
        """The job's id: the name of its directory."""
        return self.directory.name

    @property
    def logs(self) -> Path:
        """Where the logs are."""
        return self.directory / "logs"

    @property
    def state(self) -> State:
        """The job as of the last `look` or `write`."""
        return self._state if self._state is not None else self.refresh()

    @property
    def offset(self) -> int:
        """How long the events were at the last `look` or `write`."""
        return self._offset

    def refresh(self) -> State:
        """The job now: `state.json` and the events after it, or all events where it cannot be read.

        Raises:
            TpuxError: there is no event that one could read.
        """
        length = files.length(self.events_path)
        if self._state is None:
            self._state, self._offset = self._snapshot(length)
        if length != self._offset:
            for event, offset in events.read(self.events_path, self._offset):
                try:
                    self._state, self._offset = apply_event(self._state, event), offset
                except TpuxError as error:
                    raise events.corrupt_event(self.events_path, offset, error.message) from error
        if self._state is None:
            raise TpuxError("the job has no events", where=str(self.events_path), hint="remove its directory")
        return self._state

    def finished(self) -> bool:
        """Whether the job has ended, and nobody wants it started again."""
        wish = requests.read(self.directory)
        again = wish is not None and wish.want in {"resume", "rerun", "setup"} and wish.serial != self.refresh().wanted
        return self.refresh().ended and not again

    def _snapshot(self, length: int) -> tuple[State | None, int]:
        """What `state.json` holds, where it is no newer than the events' first `length` bytes."""
        data = files.load(self.directory / "state.json") or {}
        state, offset = data.get("state"), data.get("offset")
        if not isinstance(state, dict) or not isinstance(offset, int):
            return None, 0
        if offset > length:
            return None, 0
        try:
            return State.from_json(state), offset
        except TypeError:
            return None, 0

    def acquire(self) -> bool:
        """Take the job's lock, if it is free, and mend what a dead holder left; whether it was free."""
        if not self.lock.acquire():
            return False
        events.truncate_torn_line(self.events_path)
        self._state = None
        self.refresh()
        return True

    def write(self, kind: str, at: float, /, **facts: JsonValue) -> Event:
        """Write down what happened: the event first, then the state.

        Raises:
            OSError: it could not be written down, and so has not happened.
            TpuxError: it cannot happen in this state.
        """
        assert self.lock.held, "only the holder of the lock writes"  # noqa: S101
        event: Event = {"type": kind, "at": at, **facts}
        state = apply_event(self._state, event)
        offset = events.append(self.events_path, event)
        self._state, self._offset = state, offset
        data: dict[str, JsonValue] = {"offset": offset, "state": state.to_json()}
        try:
            files.write_atomic(self.directory / "state.json", files.dump(data), durable=False)
        except OSError:  # a cache of the events, which are safe: the next reader folds what is missing
            _log.warning("could not write the state of %s", self.directory, exc_info=True)
        return event

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """What happened from `offset` on, each event with the offset after it."""
        return events.read(self.events_path, offset)
