"""Notification of listeners: which plugins they are, and what the supervisor waits for or reports about them.

The supervisor calls `Listeners.check` several times a second. It starts the thread of each listener that has events to
receive, and abandons the thread of a call that does not return. All are daemon threads, so none delays the end of the
process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tpux.clock import Clock
from tpux.errors import TpuxError
from tpux.lifecycle.open import OpenedJob
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import Observer
from tpux.store import offsets
from tpux.store.files import JsonFile
from tpux.store.record import Record
from tpux.supervisor.delivery import Delivery
from tpux.supervisor.files import Files
from tpux.supervisor.report import ListenerReport, ListenerReports

_log = logging.getLogger(__name__)

EXIT_TIMEOUT = 30.0
"""Seconds that a supervisor without jobs waits for the listeners before it ends."""
KEEP_REPORTS = 7 * 86400.0
"""Seconds for which `tpux supervisor status` shows what happened to a listener."""


class Listeners:
    """All listeners. No method waits for one, except `stop` for a moment.

    Args:
        plugins: the installed plugins.
        clock: the current time.
        paths: the supervisor's files.
        observer: returns what observes the calls for a job, given the job's directory.
    """

    def __init__(self, plugins: Plugins, clock: Clock, paths: Files, observer: Callable[[Path], Observer]) -> None:
        self._clock = clock
        self._file = JsonFile(paths.listeners, ListenerReports, durable=False)
        self._guard = threading.Lock()
        self._reports: dict[str, ListenerReport] = {}
        self._exit_requested: float | None = None
        self._installed = plugins.listeners()
        self._deliver = partial(Delivery, clock=clock, report=self._report, observer=observer)
        self._listeners = [self._deliver(name, plugins) for name in self._installed]

    def start(self) -> None:
        """Read what earlier supervisors reported; the listeners that they disabled are enabled again."""
        names, oldest = {one.name for one in self._listeners}, self._clock.now() - KEEP_REPORTS
        before = (self._file.load() or ListenerReports()).reports
        kept = [replace(report, disabled=False) for report in before if report.name in names and report.at > oldest]
        self._reports = {report.name: report for report in kept}
        if before != tuple(kept):
            self._write_reports()

    def follow(
        self, record: Record, open_job: Callable[[], OpenedJob], plugins: Plugins, *, done: bool = False
    ) -> None:
        """Notify the listeners of a job's events, before the job has its first turn.

        Args:
            record: the job, just read.
            open_job: returns the job, with its plugins.
            plugins: its plugins, with its own files among them.
            done: the job writes no more events; it may have some that a listener has not received.
        """
        self._exit_requested = None if not done else self._exit_requested
        files = plugins.listeners(plugins.files) if plugins.files else []
        there = [one for one in self._listeners if not one.is_over]
        own = {one.name for one in there if one.job == record.id}
        new = [self._deliver(name, None, job=record.id) for name in files if name not in own]
        names = {*files, *(one.name for one in there if not one.job)}
        for listener in [*there, *new]:
            # A file precedes an installed plugin, and has nothing to do with another job's file of that name.
            if listener.job != (record.id if listener.name in files else ""):
                listener.backlog.drop_job(record.id)
                continue
            try:
                listener.backlog.follow(record, open_job, done=done)
            except (TpuxError, OSError) as error:
                _log.warning("job %s: listener %s is not notified: %s", record.id, listener.name, error)
        with self._guard:
            self._listeners = [*self._listeners, *new]
        if not done:
            try:
                offsets.reset_uninstalled(record, names)
            except OSError as error:
                _log.warning("job %s: cannot reset the listeners that are not installed: %s", record.id, error)

    def notify(self, job: str, end: int) -> None:
        """Make a job's events known, up to this offset."""
        self._exit_requested = None
        for listener in self._listeners:
            listener.backlog.notify(job, end)

    def behind(self, job: str) -> list[str]:
        """Return the listeners that have not received all of a job's events yet."""
        return [one.name for one in self._listeners if not one.disabled and job in one.backlog.behind()]

    def drop_job(self, job: str) -> None:
        """Drop a job whose record is about to be removed, and report who has not received all of its events."""
        for listener in self._listeners:
            if listener.backlog.drop_job(job) and listener.settled and not listener.absent:
                self._report(ListenerReport(listener.name, f"job {int(job)} was removed before it had all events"))

    def check(self) -> None:
        """Start the listeners that have something to do, and give up calls that have lasted too long.

        All plugins are imported before the first call, since a plugin may wrap the calls of others.
        """
        if any(one.is_over for one in self._listeners):
            with self._guard:
                self._listeners = [one for one in self._listeners if not one.is_over]
        ready = all(one.settled for one in self._listeners if one.backlog.behind())
        for listener in self._listeners:
            listener.check(deliver=ready)

    def may_exit(self) -> bool:
        """Return whether a supervisor that has no jobs may end: all events are received, or `EXIT_TIMEOUT` is over."""
        late = [(one.name, one.backlog.behind()) for one in self._listeners if not one.disabled]
        late = [(name, jobs) for name, jobs in late if jobs]
        if not late:
            return True
        now = self._clock.monotonic()
        self._exit_requested = now if self._exit_requested is None else self._exit_requested
        if now - self._exit_requested < EXIT_TIMEOUT:
            return False
        for name, jobs in late:
            waiting = ", ".join(str(int(job)) for job in sorted(jobs))
            message = f"it has not received all events of job {waiting}, and will when the supervisor runs again"
            self._report(ListenerReport(name, message))
        return True

    def stop(self) -> None:
        """Make no more calls; those that are being made have a moment to return."""
        for listener in self._listeners:
            listener.stop()

    def _report(self, report: ListenerReport) -> None:
        _log.warning("listener %s: %s", report.name, report.message)
        with self._guard:
            if (before := self._reports.get(report.name)) is not None:
                skipped, disabled = before.skipped + report.skipped, before.disabled or report.disabled
                report = replace(report, skipped=skipped, disabled=disabled)
            self._reports[report.name] = replace(report, at=self._clock.now())
            self._write_reports()

    def _write_reports(self) -> None:
        try:
            self._file.save(ListenerReports(tuple(self._reports.values())))
        except OSError as error:
            _log.warning("cannot write the reports on listeners: %s", error)
