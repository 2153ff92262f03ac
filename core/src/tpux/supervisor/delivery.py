"""Delivery of events to one listener, in a thread of its own; `listeners` has all of them.

A job's `events.jsonl` is the queue. A job that has written an event announces the new length of the file and continues;
nothing beyond that length is read, so never a torn line. The job that a call receives has
the attempt and the stage that stand in the event.
The listener's offset in a job's events (`backlog`) is written after calls have returned, so a supervisor that dies
before that repeats them: each event is received at least once. What is left when the process ends is delivered by the
next supervisor, which at its start also looks at the jobs that are done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tpux import threads
from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.lifecycle.open import OpenedJob
from tpux.model.events import Event, Tick
from tpux.plugin import spec
from tpux.plugin.entrypoints import reason
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import Observer
from tpux.supervisor.backlog import MAX_FAILURES, TICK_EVERY, Backlog, ListenerCursor
from tpux.supervisor.report import ListenerReport
from tpux.threads import NoThreadError, Task

_log = logging.getLogger(__name__)

CALL_TIMEOUT = 30.0
"""Seconds after which a call counts as blocked, and as failed."""
MAX_BLOCKED = 3
"""Calls that do not return after which a listener is disabled until the supervisor starts again."""
STOP_TIMEOUT = 2.0
"""Seconds (of real time) that a supervisor that ends grants a call, which would be repeated otherwise."""


@dataclass(frozen=True)
class Call:
    """A call of `on_event`.

    Attributes:
        progress: the event's job.
        event: the event.
        after: the offset after the event.
    """

    progress: ListenerCursor
    event: Event
    after: int

    def __str__(self) -> str:
        return f"on_event for {self.event.type or 'a tick'} of job {int(self.progress.record.id)}"

    @property
    def ticks(self) -> bool:
        """True if nothing has happened but that time has passed: it is neither stored nor called again."""
        return isinstance(self.event, Tick)


class Delivery:
    """Delivers the events of all jobs to one listener, in a thread.

    Args:
        name: the listener's plugin. Whether it implements the hook is known when it has been imported.
        plugins: the installed plugins; None for a listener that is a file, which each of its jobs imports.
        clock: the current time.
        report: receives messages for the user.
        observer: returns what observes the calls for a job, given the job's directory.
        job: the job whose file the listener is; "" for an installed one, which all jobs have.

    Attributes:
        backlog: the events that the listener has not received.
        settled: it has been imported, or its import has not returned in time.
        absent: it does not implement `on_event`, or cannot be imported.
        disabled: it receives nothing until the supervisor starts again.
    """

    def __init__(
        self,
        name: str,
        plugins: Plugins | None,
        clock: Clock,
        report: Callable[[ListenerReport], None],
        observer: Callable[[Path], Observer],
        job: str = "",
    ) -> None:
        self.name = name
        self.job = job
        self.settled = self._imported = plugins is None
        self.absent = self.disabled = False
        self._plugins = plugins
        self._clock = clock
        self._report = report
        self._observer = observer
        self._guard = threading.Lock()
        self.backlog = Backlog(name, clock)
        self._stopping = False
        self._thread: object | None = None  # which thread delivers; another one is abandoned
        self._task: Task | None = None
        self._since: float | None = None  # since when the plugin's code runs (monotonic)
        self._call: Call | None = None
        self._blocked: list[Task] = []

    @property
    def is_over(self) -> bool:
        """True if it is called no more: it is no listener, or its job has gone or has ended."""
        return self.absent or bool(self.job and not self.backlog.follows(self.job))

    def check(self, *, deliver: bool) -> None:
        """Abandon the call that has lasted too long, and start the thread if there is something to do.

        Args:
            deliver: call `on_event`; otherwise only import the plugin.
        """
        self._abandon_overdue()
        with self._guard:
            self._stopping = False
            due = self.backlog.next_due() is not None or self.backlog.next_tick() is not None
            if due and self._thread is None and not self.disabled and (deliver or not self._imported):
                self._thread = thread = object()
                try:
                    self._task = threads.pool().submit(lambda: self._run(thread))
                except (NoThreadError, MemoryError) as error:  # the next call tries again
                    self._thread = None
                    _log.error("no thread for listener %s: %s", self.name, error)

    def stop(self) -> None:
        """Make no more calls, and wait a moment for the one that is being made."""
        with self._guard:
            self._stopping = True
            task, since = self._task, self._since
        if task is not None:
            lasted = 0.0 if since is None else self._clock.monotonic() - since
            task.wait(max(0.0, STOP_TIMEOUT - lasted))
        with self._guard:
            self._thread = self._since = self._call = None

    def _run(self, thread: object) -> None:
        try:
            if not self._imported:
                self._import(thread)
                return
            while (work := self._next(thread)) is not None:
                work()
        finally:
            with self._guard:
                if self._thread is thread:  # it has failed: the next `check` starts another one
                    self._thread = self._since = self._call = None

    def _next(self, thread: object) -> Callable[[], object] | None:
        """Choose the job whose next event has been due for longest, or else one whose tick is due.

        Returns:
            What calls the plugin for it; None if the thread is to end.
        """
        with self._guard:
            if self._thread is not thread:
                return None
            if not self._stopping and (progress := self.backlog.next_due()) is not None:
                return partial(self._receive, progress, thread)
            if not self._stopping and (progress := self.backlog.next_tick()) is not None:
                progress.tick_at = self._clock.monotonic() + TICK_EVERY
                tick = Call(progress, Tick(at=self._clock.now()), progress.offset)
                return partial(self._call_plugin, tick, thread)
            self._thread = None
            return None

    def _import(self, thread: object) -> None:
        with self._guard:
            self._since = self._clock.monotonic()
        try:
            implemented = self._plugins is not None and self._plugins.implements(self.name, spec.on_event)
        except BaseException as error:  # noqa: BLE001  (the boundary to plugin code)
            _log.warning("plugin %s is not called as a listener: %s", self.name, error)
            implemented = False
        with self._guard:
            if self._thread is thread:
                self._since = self._thread = None
                self._imported = self.settled = True
                self.absent = not implemented

    def _receive(self, progress: ListenerCursor, thread: object) -> None:
        """Call the plugin for each new event of a job, until a call fails."""
        received = False
        try:
            for event, after in progress.record.events(progress.offset):
                if after > progress.end:
                    break  # it is just being written
                received = True
                if not self._call_plugin(Call(progress, event, after), thread):
                    return
        except TpuxError as error:
            self._drop(progress, error.message)
        except OSError as error:
            _log.warning("listener %s: the events of job %s: %s", self.name, progress.record.id, error)
            self.backlog.read_later(progress)
        else:
            if not received:
                self._drop(progress, "its events have been removed")
        finally:
            if progress.unsaved_since is not None:
                self.backlog.save(progress)

    def _drop(self, progress: ListenerCursor, why: str) -> None:
        job = progress.record.id
        if self.backlog.drop_job(job) and progress.record.directory.exists():
            self._report(ListenerReport(self.name, f"the events of job {int(job)} cannot be read: {why}"))

    def _call_plugin(self, call: Call, thread: object) -> bool:
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
            opened = self._open_job(call)
        except BaseException as error:  # noqa: BLE001  (it may raise whatever the job's plugins do)
            self._cannot_open(call, error, thread)
            return False
        call.progress.open_problem = ""
        try:
            if opened is not None:
                observer = self._observer(opened.job.directory)
                observer.secrets = opened.secrets.values()
                opened.plugins.observed(observer).notify(self.name, opened.job, call.event)
        except TpuxError as error:
            problem = error.message
        except BaseException as error:  # noqa: BLE001  (the boundary to plugin code)
            problem = reason(error)
        with self._guard:
            if self._thread is not thread:
                return False  # abandoned: the call has been counted as a failure
            self._call = self._since = None
            proceed = not problem or self._count_failure(call)
            if not problem and not call.ticks:
                self.backlog.advance(call.progress, call.after)
        if not call.ticks:
            self.backlog.save_soon(call.progress, now=bool(problem))
        if problem:
            self._report_failure(call, problem, skipped=proceed)
        return proceed

    def _open_job(self, call: Call) -> OpenedJob | None:
        """Return the job as of an event; at a tick as it is, None if its section asks for no ticks."""
        opened = call.progress.open_job()
        if not call.ticks:
            return opened._replace(job=replace(opened.job, attempt=call.event.attempt, stage=call.event.stage))
        return opened if (section := opened.job.sections.get(self.name)) is not None and section.ticks() else None

    def _cannot_open(self, call: Call, error: BaseException, thread: object) -> None:
        """Wait before a job is opened again. This is no failure of the listener: it has not been called."""
        progress = call.progress
        problem = error.message if isinstance(error, TpuxError) else reason(error)
        with self._guard:
            if self._thread is not thread:
                return
            self._call = self._since = None
            if call.ticks:
                return  # the next one tries again
            self.backlog.read_later(progress)
            known, progress.open_problem = progress.open_problem == problem, problem
        if not known and progress.record.directory.exists():
            what = f"it waits for events of job {int(progress.record.id)}, which cannot be opened"
            self._report(ListenerReport(self.name, f"{what}: {problem}"))

    def _abandon_overdue(self) -> None:
        """Give up the thread whose call has lasted too long; it counts as a failed call."""
        with self._guard:
            call, task = self._call, self._task
            if self._since is None or task is None or self._clock.monotonic() - self._since <= CALL_TIMEOUT:
                return
            self._blocked = [one for one in [*self._blocked, task] if one.alive]
            self._thread = self._since = self._call = None
            self.settled = True
            skipped = call is not None and self._count_failure(call)
            self.disabled = len(self._blocked) >= MAX_BLOCKED
        blocked = f"has not returned for {CALL_TIMEOUT:.0f} s"
        if call is None:
            _log.warning("listener %s: its import %s", self.name, blocked)
        else:
            self.backlog.save(call.progress)
            self._report_failure(call, f"it {blocked}", skipped=skipped)
        if self.disabled:
            message = f"{MAX_BLOCKED} calls have not returned, the last one is {call or 'its import'}"
            self._report(ListenerReport(self.name, message, disabled=True))

    def _count_failure(self, call: Call) -> bool:
        return call.ticks or self.backlog.count_failure(call.progress, call.after)

    def _report_failure(self, call: Call, problem: str, *, skipped: bool) -> None:
        if skipped and call.progress.forgotten:
            return
        if skipped:
            what = f"skipped {call.event.type} of job {int(call.progress.record.id)} after {MAX_FAILURES} failures"
            what = str(call) if call.ticks else what
            self._report(ListenerReport(self.name, f"{what}: {problem}", skipped=int(not call.ticks)))
        else:
            tries = f"{call.progress.failures} of {MAX_FAILURES}"
            _log.warning("listener %s: %s: %s; retrying, %s", self.name, call, problem, tries)
