"""The events that one listener has not received yet: how far it has come in those of each job.

Nothing is queued: `events.jsonl` is the queue, and the listener's offset in it (`tpux.store.offsets`) is written here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tpux.backoff import Backoff
from tpux.clock import Clock
from tpux.lifecycle.open import OpenedJob
from tpux.store import offsets
from tpux.store.offsets import Offset
from tpux.store.record import Record

_log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failed calls after which an event is skipped."""
RETRY_BACKOFF = Backoff(first=2.0, cap=60.0, factor=5.0)
SAVE_EVERY = 0.5
"""Seconds of calls for a job after which the offset is written; it is also written when the job has no more events."""
TICK_EVERY = 60.0
"""Seconds between two ticks of a job that is not done."""
READ_RETRY = 60.0
"""Seconds after which events are read again that this machine could not read, or a job is opened again."""


@dataclass
class ListenerCursor:
    """How far a listener has received the events of a job.

    Attributes:
        record: the job.
        open_job: returns the job, with its plugins.
        end: the length of the events that are on the disk.
        offset: the end of the last event that the listener has received.
        failures: how often the call for the next event has failed.
        due: when the next event is due (monotonic).
        tick_at: when the next tick is due (monotonic).
        done: the job is done, and is forgotten when the listener has received all of its events.
        open_problem: why the job could not be opened, as reported last; "" if it could.
        unsaved_since: when the first call returned that is not in the stored offset yet (monotonic); None if all are.
        forgotten: the job is removed; that its listener had not received all of its events has been reported.
    """

    record: Record
    open_job: Callable[[], OpenedJob]
    end: int
    offset: int
    failures: int = 0
    due: float = 0.0
    tick_at: float = 0.0
    done: bool = False
    open_problem: str = ""
    unsaved_since: float | None = None
    forgotten: bool = False


class Backlog:
    """The jobs whose events a listener receives. Its methods may be called from any thread.

    Args:
        listener: the plugin.
        clock: the current time.
    """

    def __init__(self, listener: str, clock: Clock) -> None:
        self._listener = listener
        self._clock = clock
        self._guard = threading.Lock()
        self._progress: dict[str, ListenerCursor] = {}
        self._pending: set[str] = set()

    def follow(self, record: Record, open_job: Callable[[], OpenedJob], *, done: bool) -> None:
        """Receive a job's events from now on, from the stored offset; see `Listeners.follow`.

        Raises:
            TpuxError, OSError: the job's events cannot be read, or the offset cannot be written.
        """
        if (known := self._progress.get(record.id)) is None:
            place = offsets.read(record, self._listener, begin=not done)
            known = ListenerCursor(record, open_job, record.offset, place.offset, place.failures)
            known.tick_at = self._clock.monotonic() + TICK_EVERY
        with self._guard:
            known.record, known.open_job, known.end, known.done = record, open_job, record.offset, done
            self._progress[record.id] = known
            self._settle(known)

    def notify(self, job: str, end: int) -> None:
        """Make a job's events known, up to this offset."""
        with self._guard:
            if (progress := self._progress.get(job)) is not None:
                progress.end = end
                self._settle(progress)

    def drop_job(self, job: str) -> bool:
        """Drop a job. Returns whether there were events that the listener has not received."""
        with self._guard:
            if (progress := self._progress.pop(job, None)) is not None:
                progress.forgotten = True
            behind = job in self._pending
            self._pending.discard(job)
            return behind

    def follows(self, job: str) -> bool:
        """Return whether there is or may be anything to receive of a job."""
        return job in self._progress

    def behind(self) -> set[str]:
        """Return the jobs with events that the listener has not received."""
        with self._guard:
            return set(self._pending)

    def _settle(self, progress: ListenerCursor) -> None:
        """Note whether there is an event to receive, with the guard held."""
        job = progress.record.id
        if progress.offset < progress.end:
            if self._progress.get(job) is progress:  # it may have been forgotten during a call
                self._pending.add(job)
            return
        self._pending.discard(job)
        if progress.done:
            self._progress.pop(job, None)

    def next_due(self) -> ListenerCursor | None:
        """Return the progress of the job whose next event has been due for longest; None if none is due."""
        with self._guard:
            now = self._clock.monotonic()
            due = [self._progress[job] for job in self._pending if self._progress[job].due <= now]
            return min(due, key=lambda progress: progress.due, default=None)

    def next_tick(self) -> ListenerCursor | None:
        """Return the progress of a job whose tick is due, None if none is."""
        with self._guard:
            now = self._clock.monotonic()
            return next((each for each in self._progress.values() if each.tick_at <= now and not each.done), None)

    def advance(self, progress: ListenerCursor, after: int) -> None:
        """Step over an event.

        Args:
            progress: the event's job.
            after: the offset after the event.
        """
        with self._guard:
            progress.offset, progress.failures = after, 0
            self._settle(progress)

    def count_failure(self, progress: ListenerCursor, after: int) -> bool:
        """Count a failed call for an event; return whether the event is skipped, after `MAX_FAILURES`.

        Args:
            progress: the event's job.
            after: the offset after the event.
        """
        progress.failures += 1
        if progress.failures >= MAX_FAILURES:
            self.advance(progress, after)
            return True
        progress.due = self._clock.monotonic() + RETRY_BACKOFF.delay(progress.failures - 1)
        return False

    def read_later(self, progress: ListenerCursor) -> None:
        """Wait before a job's events are read again."""
        progress.due = self._clock.monotonic() + READ_RETRY

    def save_soon(self, progress: ListenerCursor, *, now: bool) -> None:
        """Write the offset if calls have lasted `SAVE_EVERY` since it was written, or if it is to be written now."""
        time = self._clock.monotonic()
        progress.unsaved_since = time if progress.unsaved_since is None else progress.unsaved_since
        if now or time - progress.unsaved_since >= SAVE_EVERY:
            self.save(progress)

    def save(self, progress: ListenerCursor) -> None:
        """Write the offset in a job's events. An error is logged: the events may be received again."""
        place, progress.unsaved_since = Offset(progress.offset, progress.failures), None
        try:
            offsets.write(progress.record, self._listener, place)
        except FileNotFoundError:
            self.drop_job(progress.record.id)  # it was removed
        except OSError as error:
            _log.warning(
                "job %s: cannot write the offset of listener %s: %s", progress.record.id, self._listener, error
            )
