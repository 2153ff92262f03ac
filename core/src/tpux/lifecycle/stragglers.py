"""Workers on which the program still runs after it has ended on others."""

from __future__ import annotations

from tpux.lifecycle.attempt import open_workers
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.endings import ended_by_machine
from tpux.model.events import StragglersReported

AFTER_FAILURE, AFTER_SUCCESS = "straggling", "outlasting"
"""Conditions whose observed time is counted: the program runs on after it has failed on a worker; no worker has ended
since others have, all with exit code 0."""


def has_failed(context: JobContext) -> bool:
    """Return whether the program has failed on a worker, or was ended there by the machine."""
    return any(ending.code != 0 or ended_by_machine(context, ending) for ending in context.state.endings.values())


class Stragglers:
    """Counts for how long the program runs on some workers after it has ended on others.

    After a failure they are terminated: they would wait for their lost peer. After exit codes of 0 they are only
    reported, since one may be saving the last checkpoint for all of them.

    Attributes:
        problem: which workers outlast the others; "" if none does, or not for `watch.straggler_grace`.
        hint: what the user can do about them; "" if there is no problem.
    """

    def __init__(self) -> None:
        self.problem = self.hint = ""
        self._ended: int | None = None
        self._reported: bool | None = None

    def are_overdue(self, context: JobContext, interval: float) -> bool:
        """Count the time, and report workers that outlast those that have ended with 0.

        Args:
            context: the job.
            interval: seconds until the next call.

        Returns:
            Whether the program failed on a worker `watch.straggler_grace` ago, and is to be terminated on the others.
        """
        self.problem = self.hint = ""
        endings, grace = context.state.endings, context.job.watch.straggler_grace
        if has_failed(context):
            return context.observed.observe(AFTER_FAILURE, interval) > grace
        running = [*open_workers(context, without=context.connections.unreachable)]
        if self._ended not in (None, len(endings)):
            context.observed.end(AFTER_SUCCESS)
        self._ended = len(endings)
        if endings and running and context.observed.observe(AFTER_SUCCESS, interval) > grace:
            self._report(context, running)
        return False

    def _report(self, context: JobContext, running: list[int]) -> None:
        first, more, ended = running[0], len(running) - 1, len(context.state.endings)
        others = f" and {more} more" if more else ""
        has_ended = "on 1 other" if ended == 1 else f"on {ended} others"
        self.problem = f"the program still runs on worker {first}{others}; {has_ended} it has ended with exit code 0"
        job = int(context.state.id)
        self.hint = (
            f"what it does: tpux logs {job} --worker {first} -n 20; if it hangs: tpux stop {job}"
            " (job.stalled_after ends a silent program by itself)"
        )
        if self._reported is None:  # perhaps a former supervisor has
            self._reported = _is_reported(context)
        if not self._reported:
            self._reported = True
            attempt, workers = context.state.attempt, tuple(running)
            context.write(StragglersReported(attempt=attempt, workers=workers, message=self.problem, hint=self.hint))


def _is_reported(context: JobContext) -> bool:
    attempt, events = context.state.attempt, context.record.events()
    return any(isinstance(event, StragglersReported) and event.attempt == attempt for event, _ in events)
