"""How the command has ended on each worker: what a worker has recorded of it, and whether the attempt has succeeded.

The polls of a running attempt and a stop record and judge the ends by the same functions.
"""

from __future__ import annotations

from tpux.lifecycle.context import JobContext
from tpux.model.events import PreemptionAnnounced, WorkerEnded
from tpux.remote.process import Status
from tpux.store.state import Ending

ENDED_BY_TPUX = "ended by tpux"
"""Why a program ended that had to, because another worker failed, the attempt was over, or a user stopped the job."""
CLOCK_DIFFERENCE = 5.0
"""Seconds by which a worker's clock may differ from this machine's."""


def record_end(context: JobContext, worker: int, status: Status) -> None:
    """Write how the command has ended on a worker, and the notice of a preemption if there is one.

    Args:
        context: the job.
        worker: the worker's number.
        status: what a poll has answered: the run has ended, or is lost.
    """
    if status.notice:
        record_notice(context, worker, status.notice)
    ended_at = _plausible_end(context, status)
    # Without a reason: an environment's own steps have ended it, or its disk is full.
    reason = status.reason or (ENDED_BY_TPUX if _may_have_ended(context, worker, ended_at) else "")
    attempt, code, signal = context.state.attempt, status.code, status.signal
    context.write(
        WorkerEnded(attempt=attempt, worker=worker, code=code, reason=reason, ended_at=ended_at, signal=signal)
    )


def record_notice(context: JobContext, worker: int, evidence: str) -> None:
    """Write the first notice of a preemption in this attempt."""
    if not context.state.run.notice:
        context.write(PreemptionAnnounced(attempt=context.state.attempt, worker=worker, evidence=evidence))


def _plausible_end(context: JobContext, status: Status) -> float | None:
    """Return when the command ended by the worker's clock; None if that clock is wrong."""
    if status.ended_at is None or not context.state.run.started_at <= status.ended_at <= context.clock.now():
        return None
    return status.ended_at


def _may_have_ended(context: JobContext, worker: int, ended_at: float | None) -> bool:
    """Return whether tpux may have ended a program, this supervisor or one that has died since.

    Args:
        context: the job.
        worker: the worker's number.
        ended_at: when it ended by its worker's clock, in seconds since the epoch; None if that is unknown.
    """
    if context.terminator is not None and worker in context.terminator.ended_before:
        return not context.terminator.ended_before[worker]  # whatever the clocks say
    since = [] if context.terminating_since is None else [context.terminating_since]
    if (failure := context.state.run.failure) is not None:  # on disk before anything is terminated
        since.append(failure.at or 0.0)
    return any(ended_at is None or ended_at > at - CLOCK_DIFFERENCE for at in since)


def has_succeeded(context: JobContext, *, ended_early: bool, lost: bool) -> bool:
    """Return whether the recorded ends show that the attempt has succeeded: exit code 0 on every worker.

    A notice of preemption outranks that, and so does a signal of a machine that announces none or is lost, and the
    reason for which tpux ended the attempt early: a program may save a checkpoint on SIGTERM and exit with 0. With
    `command.require_finished` exit codes alone show nothing.

    Args:
        context: the job.
        ended_early: there was a reason to end the attempt early: a program that tpux has ended had not finished.
        lost: the machines are lost, or may be.
    """
    if context.state.run.notice or context.job.command.require_finished or not exited_with_0(context):
        return False
    for ending in context.state.endings.values():
        if ending.signal and lost:
            return False
        if ending.reason == ENDED_BY_TPUX:
            if ended_early:
                return False
        elif ended_by_machine(context, ending):
            return False
    return True


def exited_with_0(context: JobContext) -> bool:
    """Return whether the command has ended on every worker, with exit code 0."""
    endings = context.state.endings
    return len(endings) == len(context.state.run.workers) and all(ending.code == 0 for ending in endings.values())


def ended_by_machine(context: JobContext, ending: Ending) -> bool:
    """Return whether a machine that announces no preemptions, of which the cloud would know, has ended its program."""
    return bool(ending.signal) and ending.code is not None and not context.allocation.notice
