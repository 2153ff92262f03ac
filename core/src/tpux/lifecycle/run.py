"""Run the command: start it once on each worker, fetch its output, and notice when the attempt is over."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.allocation import Inspection, inspect_machines
from tpux.lifecycle.attempt import RETRY_BACKOFF, PollState, drain_output, open_workers, poll_worker
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import finish_attempt, next_state, plugin_failure
from tpux.lifecycle.stop import Terminator, terminate_processes
from tpux.plugin.events import AttemptRunning, WorkerEnded
from tpux.plugin.failures import Failure
from tpux.plugin.guard import PluginError
from tpux.plugin.machines import MachineStatus, Worker
from tpux.remote.connections import TransportFailedError
from tpux.remote.fanout import fanout

FIRST_DELAY = 0.05
REPORT_AFTER = 5.0
"""Seconds that a worker is unreachable before the job reports it."""


@dataclass
class Watch:
    """What is kept in memory of a running attempt, times by the monotonic clock; a new supervisor starts empty.

    Attributes:
        polls: polling state by worker.
        delay: seconds until the next poll; it grows while there is no output.
        machines: the allocator's last answer.
        inspect_at: when the allocator is asked next.
        failure: why tpux ends the attempt early, if it does.
        failed_at: when the first worker failed.
    """

    polls: dict[int, PollState] = field(default_factory=dict)
    delay: float = FIRST_DELAY
    machines: Inspection = field(default_factory=lambda: Inspection(MachineStatus("ready")))
    inspect_at: float = 0.0
    failure: Failure | None = None
    failed_at: float | None = None


def running(context: JobContext) -> Next:
    """Poll every worker that has not ended; finish the attempt once all have, or the machines are gone."""
    if not context.state.attempt_open:
        return next_state(context)  # crash recovery: the previous supervisor died after writing how it ended
    watch = context.watch = context.watch or Watch()
    news = _poll_workers(context, watch)
    if context.clock.monotonic() >= watch.inspect_at:
        machines = watch.machines = inspect_machines(context)
        watch.inspect_at = context.clock.monotonic() + machines.status.poll_after
        if machines.failure:
            _poll_workers(context, watch)  # for their final output
            return finish_attempt(context, machines)
    if not (open_ := open_workers(context)):
        return _finish(context, watch)
    _report_problems(context, watch.machines.plugin_error)
    _check_timeouts(context, watch)
    if watch.failure or context.terminator:
        return _terminate_remaining(context, watch, open_)
    watch.delay = FIRST_DELAY if news else min(watch.delay * 1.5, context.job.watch.poll_every)
    return Next(after=watch.delay)


def _poll_workers(context: JobContext, watch: Watch) -> bool:
    """Start or poll the command on each worker, and write which have ended; return whether anything is new."""
    now, attempt = context.clock.monotonic(), context.state.attempt
    waiting = [index for index, poll in watch.polls.items() if poll.retry_at > now]
    due = open_workers(context, without=waiting)
    if watch.failure:  # start none that was not started yet
        due = {index: worker for index, worker in due.items() if index in watch.polls}
    news = False
    for index, answer in fanout(due, lambda _, worker: poll_worker(context, watch.polls, worker)).items():
        if isinstance(answer, HostUnreachableError):
            _mark_unreachable(context, watch, due[index], answer)
            continue
        if isinstance(answer, PluginError) and context.is_last_try(answer):
            watch.failure = watch.failure or plugin_failure(answer, index)
            continue
        if isinstance(answer, TpuxError):
            raise answer
        context.connections.mark_reachable(due[index])
        news |= bool(answer.output) or answer.phase != "running"
        if answer.phase in {"ended", "lost"}:
            reason = answer.reason or ("ended by tpux" if context.terminator else "")
            context.write(WorkerEnded(attempt=attempt, worker=index, code=answer.code, reason=reason))
    if not context.state.run.running and watch.polls.keys() >= open_workers(context).keys():
        context.write(AttemptRunning(attempt=attempt))
        news = True
    return news


def _mark_unreachable(context: JobContext, watch: Watch, worker: Worker, error: HostUnreachableError) -> None:
    """Record that a worker did not answer; after `watch.lost_after` it ends the attempt if the machines are there."""
    missing = context.connections.mark_unreachable(worker, error)
    if not missing:
        watch.inspect_at = 0.0
    lost = missing > context.job.watch.lost_after and not isinstance(error, TransportFailedError)
    if lost and watch.machines.status.state == "ready":
        hint = "the cloud reports the machine as running"
        at = context.clock.now()
        watch.failure = Failure("host-lost", worker.index, evidence=str(error), hint=hint, at=at)
    if poll := watch.polls.get(worker.index):  # without one it was not started yet: the start is tried again
        poll.retry_at = context.clock.monotonic() + RETRY_BACKOFF.delay(poll.retries)
        poll.retries += 1


def _report_problems(context: JobContext, inspect_error: str) -> None:
    """Show which plugin fails, or which workers have been unreachable for more than a moment, or that all is well."""
    now, unreachable = context.clock.monotonic(), context.connections.unreachable
    why = f"attempt {context.state.attempt}"
    if problem := context.connections.transport_problem or (f"{inspect_error}; retrying" if inspect_error else ""):
        context.waiting(f"{why}: {problem}")
        return
    missing = sorted(index for index, lost in unreachable.items() if now - lost.since > REPORT_AFTER)
    if missing:
        lost = unreachable[missing[0]]
        # Each report is an event: for 5, 10, 20, 40, ... seconds.
        seconds = REPORT_AFTER * 2 ** int(math.log2((now - lost.since) / REPORT_AFTER))
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        why += f": worker {missing[0]}{more} unreachable for {seconds:.0f} s ({lost.error})"
    context.waiting(why)


def _check_timeouts(context: JobContext, watch: Watch) -> None:
    """End the attempt if output has stalled, or if other workers keep running after one failed."""
    now, stalled_after = context.clock.monotonic(), context.job.job.stalled_after
    last = max((poll.news_at for poll in watch.polls.values()), default=now)
    silent = now - last > (stalled_after or math.inf) and not context.connections.transport_problem
    if watch.failure is None and stalled_after is not None and silent:
        evidence = f"no worker wrote anything for {stalled_after:.0f} s"
        watch.failure = Failure("stalled", evidence=evidence, at=context.clock.now())
    if watch.failed_at is None and any(ending.code != 0 for ending in context.state.endings.values()):
        watch.failed_at = now
    if watch.failed_at is not None and now - watch.failed_at > context.job.watch.straggler_grace:
        context.terminator = context.terminator or Terminator(context)


def _terminate_remaining(context: JobContext, watch: Watch, open_: dict[int, Worker]) -> Next:
    delay = terminate_processes(context)
    not_started = open_.keys() - watch.polls.keys() if watch.failure else set()
    if delay is None and open_.keys() <= context.connections.unreachable.keys() | not_started:
        return finish_attempt(context, watch.machines, watch.failure)
    return Next(after=FIRST_DELAY if delay is None else min(delay, 0.5))


def _finish(context: JobContext, watch: Watch) -> Next:
    """Finish an attempt that has ended on every worker: terminate what is left, and inspect the machines."""
    if (delay := terminate_processes(context)) is not None and not context.connections.unreachable:
        return Next(after=delay)
    drain_output(context)
    if any(ending.code != 0 for ending in context.state.endings.values()):
        watch.machines = inspect_machines(context)
        if watch.machines.undecided:
            context.waiting("the command has ended on all workers; checking the machines")
            return Next(after=watch.machines.status.poll_after)
    return finish_attempt(context, watch.machines, watch.failure)
