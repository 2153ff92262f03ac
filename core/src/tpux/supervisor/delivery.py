"""Delivery of events to one listener, in a thread of its own; `listeners` has all of them.

Nothing is queued: `events.jsonl` is the queue. The listener's offset in it (`tpux.store.offsets`) is written after
calls have returned, so a supervisor that dies before that repeats them: each event is received at least once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tpux.backoff import Backoff
from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import reason
from tpux.plugin.events import Event
from tpux.plugin.job import Job
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import Observer
from tpux.store import offsets
from tpux.store.fold import apply_event
from tpux.store.offsets import Offset
from tpux.store.record import Record
from tpux.store.state import State
from tpux.supervisor.report import ListenerReport

_log = logging.getLogger(__name__)

CALL_TIMEOUT = 30.0
"""Seconds after which a call counts as blocked, and as failed."""
MAX_FAILURES = 3
"""Failed calls after which an event is skipped."""
RETRY_BACKOFF = Backoff(first=2.0, cap=60.0, factor=5.0)
MAX_BLOCKED = 3
"""Calls that do not return after which a listener is disabled until the supervisor starts again."""
STOP_TIMEOUT = 2.0
"""Seconds (of real time) that a supervisor that ends grants a call, which would be repeated otherwise."""
SAVE_EVERY = 0.5
"""Seconds of calls for a job after which the offset is written; it is also written when the job has no more events."""
READ_RETRY = 60.0
"""Seconds after which events are read again that this machine could not read, or a job is opened again."""


@dataclass
class Progress:
    """How far a listener has received the events of a job.

    Attributes:
        record: the job.
        open_job: returns the job as plugins see it.
        end: the length of the events that are on the disk.
        offset: the end of the last event that the listener has received.
        failures: how often the call for the next event has failed.
        state: the job's state at `offset`; None if it must be computed.
        due: when the next event is due (monotonic).
        done: the job is done, and is forgotten when the listener has received all of its events.
        open_problem: why the job could not be opened, as reported last; "" if it could.
        unsaved_since: when the first call returned that is not in the stored offset yet (monotonic); None if all are.
        forgotten: the job is removed; that its listener had not received all of its events has been reported.
    """

    record: Record
    open_job: Callable[[], Job]
    end: int
    offset: int
    failures: int = 0
    state: State | None = None
    due: float = 0.0
    done: bool = False
    open_problem: str = ""
    unsaved_since: float | None = None
    forgotten: bool = False


@dataclass(frozen=True)
class Call:
    """A call of `on_event`.

    Attributes:
        progress: the event's job.
        event: the event.
        after: the offset after the event.
        state: the job's state after the event.
    """

    progress: Progress
    event: Event
    after: int
    state: State

    def __str__(self) -> str:
        return f"on_event for {self.event.type} of job {int(self.progress.record.id)}"


class Delivery:
    """Delivers the events of all jobs to one listener, in a thread.

    Args:
        name: the listener's plugin. Whether it implements the hook is known when it has been imported.
        plugins: the installed plugins.
        clock: the current time.
        report: receives messages for the user.
        observer: returns what observes the calls for a job, given the job's directory.

    Attributes:
        settled: it has been imported, or its import has not returned in time.
        absent: it does not implement `on_event`, or cannot be imported.
        disabled: it receives nothing until the supervisor starts again.
    """

    def __init__(
        self,
        name: str,
        plugins: Plugins,
        clock: Clock,
        report: Callable[[ListenerReport], None],
        observer: Callable[[Path], Observer],
    ) -> None:
        self.name = name
        self.settled = self.absent = self.disabled = False
        self._plugins = plugins
        self._clock = clock
        self._report = report
        self._observer = observer
        self._guard = threading.Lock()
        self._progress: dict[str, Progress] = {}
        self._pending: set[str] = set()
        self._imported = self._stopping = False
        self._thread: threading.Thread | None = None
        self._since: float | None = None  # since when the plugin's code runs (monotonic)
        self._call: Call | None = None
        self._blocked: list[threading.Thread] = []

    # --- jobs ---------------------------------------------------------------------------------------

    def follow(self, record: Record, open_job: Callable[[], Job], *, done: bool) -> None:
        """Receive a job's events from now on, from the stored offset; see `Listeners.follow`.

        Raises:
            TpuxError, OSError: the job's events cannot be read, or the offset cannot be written.
        """
        if (known := self._progress.get(record.id)) is None:
            place = offsets.read(record, self.name, begin=not done)
            state = record.state if place.offset == record.offset else None
            known = Progress(record, open_job, record.offset, place.offset, place.failures, state)
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

    def forget(self, job: str) -> bool:
        """Drop a job. Returns whether there were events that the listener has not received."""
        with self._guard:
            if (progress := self._progress.pop(job, None)) is not None:
                progress.forgotten = True
            behind = job in self._pending
            self._pending.discard(job)
            return behind

    def behind(self) -> set[str]:
        """Return the jobs with events that the listener has not received."""
        with self._guard:
            return set(self._pending)

    def _settle(self, progress: Progress) -> None:
        """Note whether there is an event to receive, with the guard held."""
        job = progress.record.id
        if progress.offset < progress.end:
            if self._progress.get(job) is progress:  # it may have been forgotten during a call
                self._pending.add(job)
            return
        self._pending.discard(job)
        if progress.done:
            self._progress.pop(job, None)

    # --- the thread ---------------------------------------------------------------------------------

    def check(self, *, deliver: bool) -> None:
        """Abandon the call that has lasted too long, and start the thread if there is something to do.

        Args:
            deliver: call `on_event`; otherwise only import the plugin.
        """
        self._abandon_overdue()
        with self._guard:
            self._stopping = False
            due = any(self._progress[job].due <= self._clock.monotonic() for job in self._pending)
            if due and self._thread is None and not self.disabled and (deliver or not self._imported):
                self._thread = threading.Thread(target=self._run, name=f"listener {self.name}", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no thread left: the next call tries again
                    self._thread = None
                    _log.error("no thread for listener %s: %s", self.name, error)

    def stop(self) -> None:
        """Make no more calls, and wait a moment for the one that is being made."""
        with self._guard:
            self._stopping = True
            thread, since = self._thread, self._since
        if thread is not None:
            lasted = 0.0 if since is None else self._clock.monotonic() - since
            thread.join(max(0.0, STOP_TIMEOUT - lasted))
        with self._guard:
            self._thread = self._since = self._call = None

    def _run(self) -> None:
        thread = threading.current_thread()
        if not self._imported:
            self._import(thread)
            return
        while (progress := self._next(thread)) is not None:
            self._receive(progress, thread)

    def _next(self, thread: threading.Thread) -> Progress | None:
        """Choose the job whose next event has been due for longest.

        Returns:
            Its progress; None if the thread is to end.
        """
        with self._guard:
            if self._thread is not thread:
                return None
            now = self._clock.monotonic()
            due = [self._progress[job] for job in self._pending if self._progress[job].due <= now]
            if due and not self._stopping:
                return min(due, key=lambda progress: progress.due)
            self._thread = None
            return None

    def _import(self, thread: threading.Thread) -> None:
        with self._guard:
            self._since = self._clock.monotonic()
        try:
            implemented = self._plugins.implements(self.name, spec.on_event)
        except BaseException as error:  # noqa: BLE001  (the boundary to plugin code)
            _log.warning("plugin %s is not called as a listener: %s", self.name, error)
            implemented = False
        with self._guard:
            if self._thread is thread:
                self._since = self._thread = None
                self._imported = self.settled = True
                self.absent = not implemented

    def _receive(self, progress: Progress, thread: threading.Thread) -> None:
        """Call the plugin for each new event of a job, until a call fails."""
        received = False
        try:
            state = progress.state or _state_at(progress.record, progress.offset)
            for event, after in progress.record.events(progress.offset):
                if after > progress.end:
                    break  # it is just being written
                state, received = apply_event(state, event), True
                if not self._call_plugin(Call(progress, event, after, state), thread):
                    return
        except TpuxError as error:
            self._drop(progress, error.message)
        except OSError as error:
            _log.warning("listener %s: the events of job %s: %s", self.name, progress.record.id, error)
            progress.due = self._clock.monotonic() + READ_RETRY
        else:
            if not received:
                self._drop(progress, "its events have been removed")
        finally:
            if progress.unsaved_since is not None:
                self._save(progress)

    def _drop(self, progress: Progress, why: str) -> None:
        job = progress.record.id
        if self.forget(job) and progress.record.directory.exists():
            self._report(ListenerReport(self.name, f"the events of job {int(job)} cannot be read: {why}"))

    def _call_plugin(self, call: Call, thread: threading.Thread) -> bool:
        """Call the plugin for one event.

        Returns:
            Whether to continue with the job's next event.
        """
        with self._guard:
            if self._thread is not thread or self._stopping:
                return False
            self._call, self._since = call, self._clock.monotonic()
        problem = ""
        try:
            job = replace(call.progress.open_job(), attempt=call.state.attempt, stage=call.state.stage)
        except BaseException as error:  # noqa: BLE001  (it may raise whatever the job's plugins do)
            self._cannot_open(call, error, thread)
            return False
        call.progress.open_problem = ""
        try:
            self._plugins.observed(self._observer(job.directory)).notify(self.name, job, call.event)
        except TpuxError as error:
            problem = error.message
        except BaseException as error:  # noqa: BLE001  (the boundary to plugin code)
            problem = reason(error)
        with self._guard:
            if self._thread is not thread:
                return False  # abandoned: the call has been counted as a failure
            self._call = self._since = None
            proceed = self._failed(call) if problem else self._advance(call)
        now, progress = self._clock.monotonic(), call.progress
        progress.unsaved_since = now if progress.unsaved_since is None else progress.unsaved_since
        if problem or now - progress.unsaved_since >= SAVE_EVERY:
            self._save(progress)
        if problem:
            self._report_failure(call, problem, skipped=proceed)
        return proceed

    def _cannot_open(self, call: Call, error: BaseException, thread: threading.Thread) -> None:
        """Wait before a job is opened again. This is no failure of the listener: it has not been called."""
        progress = call.progress
        problem = error.message if isinstance(error, TpuxError) else reason(error)
        with self._guard:
            if self._thread is not thread:
                return
            self._call = self._since = None
            progress.due = self._clock.monotonic() + READ_RETRY
            known, progress.open_problem = progress.open_problem == problem, problem
        if not known and progress.record.directory.exists():
            what = f"it waits for events of job {int(progress.record.id)}, which cannot be opened"
            self._report(ListenerReport(self.name, f"{what}: {problem}"))

    def _advance(self, call: Call) -> bool:
        """Step over an event, with the guard held. Returns True."""
        progress = call.progress
        progress.offset, progress.failures, progress.state = call.after, 0, call.state
        self._settle(progress)
        return True

    def _failed(self, call: Call) -> bool:
        """Count a failed call, with the guard held. Returns whether the event is skipped."""
        progress = call.progress
        progress.failures += 1
        if progress.failures >= MAX_FAILURES:
            return self._advance(call)
        progress.due = self._clock.monotonic() + RETRY_BACKOFF.delay(progress.failures - 1)
        return False

    def _abandon_overdue(self) -> None:
        """Give up the thread whose call has lasted too long; it counts as a failed call."""
        with self._guard:
            call, thread = self._call, self._thread
            if self._since is None or thread is None or self._clock.monotonic() - self._since <= CALL_TIMEOUT:
                return
            self._thread = self._since = self._call = None
            self.settled = True
            skipped = call is not None and self._failed(call)
            self._blocked = [one for one in [*self._blocked, thread] if one.is_alive()]
            self.disabled = len(self._blocked) >= MAX_BLOCKED
        blocked = f"has not returned for {CALL_TIMEOUT:.0f} s"
        if call is None:
            _log.warning("listener %s: its import %s", self.name, blocked)
        else:
            self._save(call.progress)
            self._report_failure(call, f"it {blocked}", skipped=skipped)
        if self.disabled:
            message = f"{MAX_BLOCKED} calls have not returned, the last one is {call or 'its import'}"
            self._report(ListenerReport(self.name, message, disabled=True))

    def _save(self, progress: Progress) -> None:
        place, progress.unsaved_since = Offset(progress.offset, progress.failures), None
        try:
            offsets.write(progress.record, self.name, place)
        except FileNotFoundError:
            self.forget(progress.record.id)  # it was removed
        except OSError as error:  # the events may be received again
            _log.warning("job %s: cannot write the offset of listener %s: %s", progress.record.id, self.name, error)

    def _report_failure(self, call: Call, problem: str, *, skipped: bool) -> None:
        if skipped and call.progress.forgotten:
            return
        if skipped:
            what = f"skipped {call.event.type} of job {int(call.progress.record.id)} after {MAX_FAILURES} failures"
            self._report(ListenerReport(self.name, f"{what}: {problem}", skipped=1))
        else:
            tries = f"{call.progress.failures} of {MAX_FAILURES}"
            _log.warning("listener %s: %s: %s; retrying, %s", self.name, call, problem, tries)


def _state_at(record: Record, offset: int) -> State | None:
    """Return the job's state after the events before `offset`."""
    state = None
    for event, after in record.events():
        if after > offset:
            break
        state = apply_event(state, event)
    return state
