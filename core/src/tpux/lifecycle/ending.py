"""Ending what a job started on its workers, until that is confirmed on every one of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

from tpux import runs
from tpux.lifecycle import attempts
from tpux.lifecycle.machines import look_at_machines, machines_failure
from tpux.lifecycle.stories import Stories, Story, patiently, walk
from tpux.lifecycle.work import Work
from tpux.machines import Worker
from tpux.steps import Step, Steps

CHECK_EVERY = 0.2
"""Seconds between two looks at whether a program that was asked to end has ended."""


class Ender:
    """Ends the command of the attempt at hand, or the set-up that has not come to one, on all workers.

    First the environment's own way (a container outlives its client), then SIGTERM to every process that
    carries the run's id, after `command.grace_period` SIGKILL. It can be begun again at any time.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stories = Stories(work, {w.index: _end(work, w) for w in work.allocation.workers})

    def turn(self) -> float | None:
        """Take a step on each worker; in how many seconds for the next, None once all is ended or the machines gone."""
        delay = self._stories.turn()
        if delay is not None and self._work.out_of_reach and self._gone():
            return None
        return delay

    def _gone(self) -> bool:
        return machines_failure(self._work, look_at_machines(self._work)) is not None


def end_leftovers(work: Work) -> float | None:
    """Go on ending all that the job runs; in how many seconds to go on again, None once all has ended."""
    return work.recall(Ender, lambda: Ender(work)).turn()


def _end(work: Work, worker: Worker) -> Generator[float, None, None]:
    state = work.state
    if state.run.get("round") != state.round:
        # A set-up that was broken off. Once it is through, what it has started (a mount's daemon, say) stays.
        yield from _end_run(work, worker, runs.Run(work.job.key, state.attempt + 1, f"r{state.round}-*"))
    elif worker.index in attempts.workers(state):
        if stop := attempts.command(work, worker).stop:
            yield from walk(work, worker, _each(stop), log="stop", name=f"stop-{state.attempt}")
        yield from _end_run(work, worker, attempts.command_run(work))


def _end_run(work: Work, worker: Worker, target: runs.Run) -> Generator[float, None, None]:
    def stop(signal: Literal["TERM", "KILL", "0"]) -> Story[int]:
        return patiently(work, worker, lambda host: runs.stop(host, target, signal=signal))

    left = yield from stop("TERM")
    deadline = work.clock.now() + work.job.command.grace_period
    while left:
        yield CHECK_EVERY
        left = yield from stop("KILL" if work.clock.now() >= deadline else "0")


def _each(steps: tuple[Step, ...]) -> Steps:
    yield from steps
