"""The user wants the job stopped: its programs end, and its machines are kept or given back."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

from tpux.lifecycle import attempts
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.machine_status import inspect_machines, machines_failure
from tpux.lifecycle.poll import PROBE_EVERY, PollState, drain_output, look
from tpux.lifecycle.release import release_at
from tpux.lifecycle.tasks import TaskGroup, WorkerTask, retry_unreachable, walk
from tpux.plugin.machines import Worker
from tpux.plugin.steps import Step, Steps
from tpux.remote import process
from tpux.remote.fanout import fanout
from tpux.remote.process import Status


def stopping(context: JobContext) -> float:
    """End the programs on every worker, confirmed; then the job is stopped."""
    delay = terminate_processes(context) if context.state.allocation is not None else None
    if context.state.attempt_open:
        _hear_out(context)
    if delay is not None:
        return delay
    if context.state.attempt_open:
        drain_output(context)
        context.attempt_ended(None, stopped=True)
    context.forget()
    context.move("stopped", why="as the user wanted", release_at=release_at(context, "stopped"))
    return 0


def _hear_out(context: JobContext) -> None:
    """Bring home what the programs say while they end, and write down who has; none is started any more."""
    now = context.clock.now()
    workers = {
        i: context.allocation.workers[i] for i in attempts.workers(context.state) if i not in context.out_of_reach
    }
    for index in workers:
        context.output_log(index).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    open_ = {index: worker for index, worker in workers.items() if str(index) not in context.state.endings}
    seen = {index: PollState(now, probe_at=now + PROBE_EVERY) for index in open_}
    for index, status in fanout(open_, lambda _, worker: look(context, seen, worker)).items():
        if isinstance(status, Status) and status.phase == "ended":
            context.write(
                "worker-ended", attempt=context.state.attempt, worker=index, code=status.code, reason="stopped"
            )


CHECK_EVERY = 0.2
"""Seconds between two looks at whether a program that was asked to end has ended."""


class Terminator:
    """Ends the command of the attempt at hand, or the set-up that has not come to one, on all workers.

    First the environment's own way (a container outlives its client), then SIGTERM to every process that
    carries the run's id, after `command.grace_period` SIGKILL. It can be begun again at any time.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._stories = TaskGroup(context, {w.index: _end(context, w) for w in context.allocation.workers})

    def turn(self) -> float | None:
        """Take a step on each worker; in how many seconds for the next, None once all is ended or the machines gone."""
        delay = self._stories.turn()
        if delay is not None and self._context.out_of_reach and self._gone():
            return None
        return delay

    def _gone(self) -> bool:
        return machines_failure(self._context, inspect_machines(self._context)) is not None


def terminate_processes(context: JobContext) -> float | None:
    """Go on ending all that the job runs; in how many seconds to go on again, None once all has ended."""
    return context.recall(Terminator, lambda: Terminator(context)).turn()


def _end(context: JobContext, worker: Worker) -> Generator[float, None, None]:
    state = context.state
    if state.run.get("round") != state.round:
        # A set-up that was broken off. Once it is through, what it has started (a mount's daemon, say) stays.
        yield from _end_run(
            context, worker, process.RemoteProcess(context.job.key, state.attempt + 1, f"r{state.round}-*")
        )
    elif worker.index in attempts.workers(state):
        if stop := attempts.command(context, worker).stop:
            yield from walk(context, worker, _each(stop), log="stop", name=f"stop-{state.attempt}")
        yield from _end_run(context, worker, attempts.command_run(context))


def _end_run(context: JobContext, worker: Worker, target: process.RemoteProcess) -> Generator[float, None, None]:
    def stop(signal: Literal["TERM", "KILL", "0"]) -> WorkerTask[int]:
        return retry_unreachable(context, worker, lambda host: process.stop(host, target, signal=signal))

    left = yield from stop("TERM")
    deadline = context.clock.now() + context.job.command.grace_period
    while left:
        yield CHECK_EVERY
        left = yield from stop("KILL" if context.clock.now() >= deadline else "0")


def _each(steps: tuple[Step, ...]) -> Steps:
    yield from steps
