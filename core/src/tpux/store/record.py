"""A job's directory: read by anyone, written by the process that holds its lock.

`events.jsonl` is the only source of a job's state. `Record.write` appends an event and syncs it; `store/fold.py`
computes the next state from the events alone, never from a constant of the installed version. `state.json` is a cache
of that, and may be lost. Nothing is done because of an event before it is synced, so a torn last line was never acted
on: the next holder of the lock truncates it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.model import json
from tpux.model.json import JsonValue
from tpux.store import events, files, open_jobs, published
from tpux.store.files import JsonFile
from tpux.store.locks import Lock, is_free
from tpux.store.state import State

if TYPE_CHECKING:
    from tpux.model.events import Event

_log = logging.getLogger(__name__)

SNAPSHOT_FORMAT = 10
"""The format of `state.json`. Raise it when `State` or the fold changes: older snapshots are then computed anew."""
_FIELDS = {field.name for field in fields(State)}

UPDATES = "updates"
"""The directory, in a job's, of the answers that commands have stored in place of those of plugins' `resolve`."""

UNANSWERED = "provision-unanswered"
"""The mark in a job's directory that `provision` was called and its answer is not written."""


@dataclass(frozen=True)
class _Update:
    config: str
    values: dict[str, JsonValue]


class Record:
    """A job on disk.

    Args:
        directory: the job's directory.
        lock: the job's lock, which the caller of `write` holds.
    """

    def __init__(self, directory: str | Path, lock: Lock) -> None:
        self._directory = str(directory)
        self.lock = lock
        self._events = f"{directory}/events.jsonl"
        self._state: State | None = None
        self._offset = 0
        self._is_published = True

    @cached_property
    def directory(self) -> Path:
        """The job's directory."""
        return Path(self._directory)  # only where it is used: `tpux list` makes a record of each job

    @property
    def id(self) -> str:
        """The job's id: the name of its directory."""
        return self.directory.name

    @property
    def events_path(self) -> Path:
        """The file of the job's events."""
        return Path(self._events)

    @property
    def home(self) -> Path:
        """The directory of the store."""
        return self.directory.parents[2]

    @property
    def config_directory(self) -> Path:
        """The directory of the job's current config: `config.yaml`, `resolved.json`, `secrets.json`, `files`."""
        return self.directory / self.state.config

    @property
    def logs(self) -> Path:
        """The directory of the job's logs."""
        return self.directory / "logs"

    def log(self, name: str, line: str, now: float) -> None:
        """Append a line, with the time, to one of the job's own logs.

        Args:
            name: the name of the log.
            line: the line.
            now: seconds since the epoch.
        """
        from datetime import UTC, datetime

        at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S")
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.append_output(path, f"{at} {line}\n".encode())

    def output_log(self, attempt: int, worker: int) -> Path:
        """Return the file of what the command wrote on one worker."""
        return Path(f"{self.directory}/logs/attempt-{attempt}/command_worker_{worker}.log")

    @property
    def reader_lock(self) -> Lock:
        """The lock that a command holds while it prints the output as it comes. Of several commands one holds it.

        It is not in the job's directory: to take it would create the directory of a job again that was just deleted.
        """
        return Lock(f"{self.lock.path}.read")

    def is_read(self) -> bool:
        """Return whether a command waits for output, so that it is to be fetched soon."""
        with suppress(OSError, TpuxError):  # where that is not known, output is fetched later
            return not is_free(self.reader_lock.path)
        return False

    def collected(self, attempt: int) -> Path:
        """Return the directory of the files that were fetched from the workers after an attempt."""
        return self.directory / "collected" / str(attempt)

    @property
    def state(self) -> State:
        """The job's state as of the last `refresh` or `write`."""
        return self._state if self._state is not None else self.refresh()

    @property
    def offset(self) -> int:
        """The length of the events file as of the last `refresh` or `write`."""
        return self._offset

    def refresh(self) -> State:
        """Return the job's current state: that of `state.json` and the events after it, or of all events.

        Raises:
            TpuxError: there are no events, or one of them cannot be read.
        """
        length = files.length(self._events)
        if self._state is None:
            self._state, self._offset = self._snapshot(length)
        if length != self._offset:
            from tpux.store.fold import apply_event  # most readers find nothing after the snapshot

            for event, offset in events.read(self.events_path, self._offset):
                try:
                    self._state, self._offset = apply_event(self._state, event), offset
                except TpuxError as error:
                    raise events.corrupt_event(self.events_path, offset, error.message) from error
        if self._state is None:
            raise TpuxError("the job has no events", where=str(self.events_path), hint="remove its directory")
        return self._state

    def updates(self) -> dict[str, dict[str, JsonValue]]:
        """Return the answers that replace those of plugins' `resolve` from the next set-up on, by plugin.

        Those for a config that the job no longer has are left out: it was stored with answers of its own.
        """
        found = {path.stem: JsonFile(path, _Update).load() for path in (self.directory / UPDATES).glob("*.json")}
        return {name: one.values for name, one in found.items() if one and one.config == self.state.config}

    def update(self, plugin: str, values: Mapping[str, JsonValue]) -> None:
        """Store an answer that replaces that of a plugin's `resolve` from the next set-up on. Needs no lock.

        Raises:
            OSError: it could not be written.
        """
        path = self.directory / UPDATES / f"{plugin}.json"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        JsonFile(path, _Update).save(_Update(self.refresh().config, dict(values)))

    def stored_section(self, name: str) -> Mapping[str, JsonValue]:
        """Return a section of the job's config as it is stored, {} if it has none or cannot be read."""
        config = (files.load(self.config_directory / "resolved.json") or {}).get("config")
        section = config.get(name) if isinstance(config, dict) else None
        return section if isinstance(section, dict) else {}

    def describe_machines(self) -> str:
        """Return which machines the job has requested and not released, and where: as far as it can be read."""
        state = self.state
        name = state.machines.name if state.machines else state.request_name or "(no name)"
        where = f" in {state.zone}" if state.zone else ""
        resolved = (files.load(self.config_directory / "resolved.json") or {}).get("resolved")
        place = resolved.get(state.allocator) if isinstance(resolved, dict) else None
        values = place.items() if isinstance(place, dict) else ()
        details = ", ".join(f"{state.allocator}.{key}: {value}" for key, value in values if value not in ("", None))
        return f"{name}{where}" + (f" ({details})" if details else "")

    def _snapshot(self, length: int) -> tuple[State | None, int]:
        """Return the state in `state.json` and its offset, if it is no newer than the events' first `length` bytes."""
        data = files.load(f"{self._directory}/state.json") or {}
        state, offset = data.get("state"), data.get("offset")
        if data.get("format") != SNAPSHOT_FORMAT or not isinstance(state, dict) or not isinstance(offset, int):
            return None, 0
        if offset > length:
            return None, 0
        try:
            return (json.build(State, state), offset) if state.keys() == _FIELDS else (None, 0)
        except ValueError:
            return None, 0

    def acquire(self) -> bool:
        """Take the job's lock if it is free, and repair what a crashed holder left.

        Returns:
            True if the lock was free.
        """
        if not self.lock.acquire():
            return False
        events.truncate_torn_line(self.events_path)
        self._state = None
        if open_jobs.is_open(self.refresh()):
            open_jobs.mark(open_jobs.mark_of(self._directory))  # that of an older tpux is missing
        published.publish_state(self._directory, self._state)
        return True

    def write(self, event: Event, at: float) -> Event:
        """Append an event, then update the snapshot.

        Args:
            event: the event.
            at: the time, in seconds since the epoch.

        Returns:
            The event with its time, and the attempt and the stage after it.

        Raises:
            OSError: it could not be written; nothing has changed.
            TpuxError: the event cannot happen in this state.
        """
        from tpux.store.fold import apply_event

        assert self.lock.held, "only the holder of the lock writes"  # noqa: S101
        event = replace(event, at=at)
        state = apply_event(self._state, event)
        event = replace(event, attempt=state.attempt, stage=state.stage)
        opened = open_jobs.is_open(state)
        changes = opened != (self._state is not None and open_jobs.is_open(self._state))
        if changes and opened:
            open_jobs.mark(open_jobs.mark_of(self._directory))
        is_news = not self._is_published or published.of_state(self._state) != published.of_state(state)
        if is_news:
            published.publish_state(self._directory, self._state, state)
        offset = events.append(self.events_path, event)
        self._state, self._offset = state, offset
        if is_news:
            self._is_published = published.unpublish_former(self._directory, state)
        data: dict[str, JsonValue] = {"format": SNAPSHOT_FORMAT, "offset": offset, "state": json.dump(state)}
        try:
            files.write_atomic(self.directory / "state.json", files.dump(data), durable=False)
        except OSError:  # only a cache of the events: the next reader applies those that are missing in it
            _log.warning("cannot write the snapshot of %s", self.directory, exc_info=True)
        if changes and not opened:
            open_jobs.unmark(open_jobs.mark_of(self._directory))
        return event

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Yield the events from `offset` on, each with the offset after it."""
        return events.read(self.events_path, offset)
