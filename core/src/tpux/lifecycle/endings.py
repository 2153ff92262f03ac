"""How the command has ended on each worker: what a worker has recorded of it, and whether the attempt has succeeded.

The polls of a running attempt and a stop record and judge the ends by the same functions.

- On the notice of a preemption a worker acts alone: `remote/scripts/notice.sh` records it and terminates the program.
  Each poll reads it; `preemption-announced` makes the attempt end as preempted, whichever supervisor continues it.
- The shutdown of a machine sends SIGTERM to all processes, perhaps before its notice can be read. tpux never signals
  the runner, so a signal that the runner records is the machine's. A program may exit with 0 on it, with half of its
  work done: exit codes of 0 are a success at once only without a notice and a signal. Otherwise `run` polls the
  allocator, and the workers of machines that announce preemptions, for `watch.verdict_grace` of observed time.
- Before tpux terminates anything on a worker it checks whether the command has ended there, and the worker records that
  tpux ends it; clocks, which may differ, decide only where a worker cannot record that. So a stop comes to the same
  result whether or not a supervisor ran when the programs ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpux.errors import TpuxError
from tpux.lifecycle.programs import programs
from tpux.lifecycle.turn import Turn
from tpux.model.events import PreemptionAnnounced, WorkerExited
from tpux.model.failures import ENDED_BY_TPUX
from tpux.remote import output
from tpux.remote.output import MAX_FETCH, Known
from tpux.remote.process import Status
from tpux.store.state import Ending

CLOCK_DIFFERENCE = 5.0
"""Seconds by which a worker's clock may differ from this machine's."""


def known(turn: Turn) -> Known:
    """Return what is known of the attempt when output arrives."""
    state, failure = turn.state, turn.state.run.failure
    ends = [ending.at for ending in state.endings.values()]
    last_end = max(*ends, (failure.at or 0.0) if failure else 0.0, 0.0)
    return Known(state.run.running, len(ends) + bool(failure), last_end)


def drain_output(
    turn: Turn, *, without: Iterable[int] = (), max_fetch: int = MAX_FETCH
) -> tuple[list[int], dict[int, TpuxError]]:
    """Fetch output that was written while the programs were ended, and record where the command has ended.

    Args:
        turn: the step.
        without: workers that are left out.
        max_fetch: bytes after which no more is fetched from a worker in this call.

    Returns:
        The workers that have more, and the errors of those from which nothing could be fetched.
    """
    asked, last_end = programs(turn, without=without), known(turn).last_end
    answers = output.drain(turn.workers, asked, last_end, turn.log, max_fetch)
    errors = {index: answer for index, answer in answers.items() if isinstance(answer, TpuxError)}
    statuses = {index: answer for index, answer in answers.items() if not isinstance(answer, TpuxError)}
    for index, status in statuses.items():
        if status.phase == "ended" and index not in turn.state.endings:
            record_end(turn, index, status)
    return [index for index, status in statuses.items() if status.more], errors


def read_notices(turn: Turn, retry_after: float) -> None:
    """Ask all workers for notices of a preemption, also those on which the command has ended.

    Args:
        turn: the step.
        retry_after: seconds until they are asked again.
    """
    for index, answer in sorted(output.read_notices(turn.workers, programs(turn)).items()):
        worker = turn.machines.workers[index]
        if isinstance(answer, TpuxError):
            turn.workers.mark_unreachable(worker, answer, retry_after)
            continue
        turn.workers.mark_reachable(worker)
        if answer:
            record_notice(turn, index, answer)


def record_end(turn: Turn, worker: int, status: Status) -> None:
    """Write how the command has ended on a worker, and the notice of a preemption if there is one.

    Args:
        turn: the step.
        worker: the worker's number.
        status: what a poll has answered: the run has ended, or is lost.
    """
    if status.notice:
        record_notice(turn, worker, status.notice)
    ended_at = _plausible_end(turn, status)
    # Without a reason: an environment's own steps have ended it, or its disk is full.
    reason = status.reason or (ENDED_BY_TPUX if _may_have_ended(turn, worker, ended_at) else "")
    attempt, code, signal = turn.state.attempt, status.code, status.signal
    turn.write(WorkerExited(attempt=attempt, worker=worker, code=code, reason=reason, ended_at=ended_at, signal=signal))


def record_notice(turn: Turn, worker: int, evidence: str) -> None:
    """Write the first notice of a preemption in this attempt."""
    if not turn.state.run.notice:
        turn.write(PreemptionAnnounced(attempt=turn.state.attempt, worker=worker, evidence=evidence))


def _plausible_end(turn: Turn, status: Status) -> float | None:
    """Return when the command ended by the worker's clock; None if that clock is wrong."""
    if status.ended_at is None or not turn.state.run.started_at <= status.ended_at <= turn.clock.now():
        return None
    return status.ended_at


def _may_have_ended(turn: Turn, worker: int, ended_at: float | None) -> bool:
    """Return whether tpux may have ended a program, this supervisor or one that has died since.

    Args:
        turn: the step.
        worker: the worker's number.
        ended_at: when it ended by its worker's clock, in seconds since the epoch; None if that is unknown.
    """
    if worker in turn.termination.ended_before:
        return not turn.termination.ended_before[worker]  # whatever the clocks say
    since = [] if turn.termination.since is None else [turn.termination.since]
    if (failure := turn.state.run.failure) is not None:  # on disk before anything is terminated
        since.append(failure.at or 0.0)
    return any(ended_at is None or ended_at > at - CLOCK_DIFFERENCE for at in since)


def has_succeeded(turn: Turn, *, ended_early: bool, lost: bool) -> bool:
    """Return whether the recorded ends show that the attempt has succeeded: exit code 0 on every worker.

    A notice of preemption outranks that, and so does a signal of a machine that announces none or is lost, and the
    reason for which tpux ended the attempt early: a program may save a checkpoint on SIGTERM and exit with 0. With
    `command.require_finished` exit codes alone show nothing.

    Args:
        turn: the step.
        ended_early: there was a reason to end the attempt early: a program that tpux has ended had not finished.
        lost: the machines are lost, or may be.
    """
    if turn.state.run.notice or turn.job.command.require_finished or not exited_with_0(turn) or runs_on(turn):
        return False
    for ending in turn.state.endings.values():
        if ending.signal and lost:
            return False
        if ending.reason == ENDED_BY_TPUX:
            if ended_early:
                return False
        elif ended_by_machine(turn, ending):
            return False
    return True


def runs_on(turn: Turn) -> bool:
    """Return whether something was found to run on after exit code 0 on all workers; see `left`."""
    failure = turn.state.run.failure
    return failure is not None and failure.kind == "incomplete"


def exited_with_0(turn: Turn) -> bool:
    """Return whether the command has ended on every worker, with exit code 0."""
    endings = turn.state.endings
    return len(endings) == len(turn.state.run.workers) and all(ending.code == 0 for ending in endings.values())


def ended_by_machine(turn: Turn, ending: Ending) -> bool:
    """Return whether a machine that announces no preemptions, of which the cloud would know, has ended its program."""
    return bool(ending.signal) and ending.code is not None and not turn.machines.notice
