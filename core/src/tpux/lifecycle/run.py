"""The command on its workers: started once, watched, its output brought home, its end judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import attempts
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.failure import go_on, judge
from tpux.lifecycle.machine_status import inspect_machines, machines_failure, within_unknown_grace
from tpux.lifecycle.poll import PollState, drain_output, look
from tpux.lifecycle.stop import Terminator, terminate_processes
from tpux.plugin.failures import Failure
from tpux.plugin.machines import MachineStatus, Worker
from tpux.remote.fanout import fanout

FIRST_PAUSE = 0.05
WORTH_TELLING = 5.0
"""Seconds that a worker is out of reach before the job says so."""


@dataclass
class Watch:
    """What is in memory of a running attempt; a new supervisor begins with an empty one."""

    seen: dict[int, PollState] = field(default_factory=dict)
    pause: float = FIRST_PAUSE
    machines: MachineStatus = field(default_factory=lambda: MachineStatus("ready"))
    inspect_at: float = 0.0
    verdict: Failure | None = None
    failed_at: float | None = None


def running(context: JobContext) -> float:
    """Look at every worker that has not ended; judge the attempt once all have, or the machines are gone."""
    if not context.state.attempt_open:
        return go_on(context)  # a supervisor wrote down how it ended, and was killed before the next word
    watch = context.recall(Watch, Watch)
    news = _look_at_workers(context, watch)
    if failure := _look_at_machines(context, watch):
        return judge(context, watch.machines, failure)
    if not _open(context):
        return _finish(context, watch)
    _tell(context)
    _lose_patience(context, watch)
    if watch.verdict or context.recalled(Terminator):
        return _end_the_rest(context, watch)
    watch.pause = FIRST_PAUSE if news else min(watch.pause * 1.5, context.job.watch.poll_every)
    return watch.pause


def _open(context: JobContext) -> dict[int, Worker]:
    """The workers whose command has not ended."""
    return {
        index: context.allocation.workers[index]
        for index in attempts.workers(context.state)
        if str(index) not in context.state.endings
    }


def _look_at_workers(context: JobContext, watch: Watch) -> bool:
    """Start or poll each worker's run and write down what is new; whether anything is."""
    now = context.clock.now()
    due = {i: w for i, w in _open(context).items() if i not in watch.seen or watch.seen[i].retry_at <= now}
    answers = fanout(due, lambda _, worker: look(context, watch.seen, worker))
    news = False
    for index, answer in answers.items():
        if isinstance(answer, TpuxError):
            _out_of_reach(context, watch, index, answer)
            continue
        context.reached(context.allocation.workers[index])
        news |= bool(answer.output) or answer.phase != "running"
        if answer.phase in {"ended", "lost"}:
            reason = answer.reason or ("ended by tpux" if context.recalled(Terminator) else "")
            context.write("worker-ended", attempt=context.state.attempt, worker=index, code=answer.code, reason=reason)
            if answer.code != 0 and watch.failed_at is None:
                watch.failed_at = now
    if not context.state.run["running"] and all(index in watch.seen for index in attempts.workers(context.state)):
        context.write("attempt-running", attempt=context.state.attempt)
        news = True
    return news


def _out_of_reach(context: JobContext, watch: Watch, index: int, error: TpuxError) -> None:
    """Note that a worker did not answer; it is looked at again with growing pauses."""
    if not isinstance(error, HostUnreachableError):
        raise error
    missing = context.missed(context.allocation.workers[index], error)
    now = context.clock.now()
    if not missing:
        watch.inspect_at = 0.0
    if missing > context.job.watch.lost_after and watch.machines.state == "ready":
        hint = "the cloud says that the machine is there"
        watch.verdict = Failure("host-lost", index, evidence=str(error), hint=hint, at=now)
    if (seen := watch.seen.get(index)) is not None:  # where it was not started yet, the start is tried again
        seen.retry_at, seen.retry_pause = now + seen.retry_pause, min(seen.retry_pause * 2, 15.0)


def _tell(context: JobContext) -> None:
    """Say which workers are out of reach, once they have been so for a moment, and that they are no longer."""
    now = context.clock.now()
    missing = sorted(i for i, lost in context.out_of_reach.items() if now - lost.since > WORTH_TELLING)
    why = f"attempt {context.state.attempt}"
    if missing:
        why += f": out of reach: worker {', '.join(map(str, missing))} ({context.out_of_reach[missing[0]].error})"
    context.waiting(why)


def _look_at_machines(context: JobContext, watch: Watch) -> Failure | None:
    """Ask the allocator when it is time; the failure that its answer stands for, if any."""
    now = context.clock.now()
    if now < watch.inspect_at:
        return None
    watch.machines = inspect_machines(context)
    watch.inspect_at = now + watch.machines.poll_after
    if (failure := machines_failure(context, watch.machines)) is not None:
        _look_at_workers(context, watch)  # what they still had to say
    return failure


def _lose_patience(context: JobContext, watch: Watch) -> None:
    """End the attempt where it has stalled, or where a worker failed and the others do not follow."""
    now, stalled = context.clock.now(), context.job.job.stalled_after
    last = max((seen.news_at for seen in watch.seen.values()), default=now)
    if watch.verdict is None and stalled is not None and now - last > stalled:
        watch.verdict = Failure("stalled", evidence=f"no worker wrote anything for {stalled:.0f} s", at=now)
    if watch.failed_at is None and any(ending["code"] != 0 for ending in context.state.endings.values()):
        watch.failed_at = now
    if watch.failed_at is not None and now - watch.failed_at > context.job.watch.straggler_grace:
        context.recall(Terminator, lambda: Terminator(context))


def _end_the_rest(context: JobContext, watch: Watch) -> float:
    delay = terminate_processes(context)
    if delay is None and _open(context).keys() <= context.out_of_reach.keys():
        return judge(context, watch.machines, watch.verdict)
    return FIRST_PAUSE if delay is None else min(delay, 0.5)


def _finish(context: JobContext, watch: Watch) -> float:
    """All have ended: end what they left behind, ask what became of the machines, and judge."""
    if (delay := terminate_processes(context)) is not None and not context.out_of_reach:
        return delay
    drain_output(context)
    if any(ending["code"] != 0 for ending in context.state.endings.values()):
        watch.machines = inspect_machines(context)
        if within_unknown_grace(context):
            context.waiting("all workers have ended; asking what became of the machines")
            return watch.machines.poll_after
    return judge(context, watch.machines, watch.verdict)
