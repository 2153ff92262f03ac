"""Workers that do not answer: since when, what the job reports, and which of them count as lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tpux.lifecycle.context import JobContext
from tpux.model.failures import Failure
from tpux.model.machines import Worker

REPORT_AFTER = 5.0
"""Seconds that a worker is unreachable before the job reports it."""

VERDICT_POLL = 3.0
"""Seconds between two checks whether machines are preempted, or lost."""
DOUBTED = "doubted"
"""The condition that programs run on machines that are lost, as the allocator says; its observed time is counted."""


def lost_after(context: JobContext) -> float:
    """Return for how many seconds a worker is waited for that does not answer: not long after a notice."""
    watch = context.job.watch
    return min(watch.verdict_grace, watch.lost_after) if context.state.run.notice else watch.lost_after


def overdue_workers(context: JobContext) -> list[int]:
    """Return the workers that were observed to be unreachable for the time that `lost_after` returns.

    They count as lost only if the allocator, asked again, reports the machines as ready, and one more login fails.
    """
    limit = lost_after(context)
    unreachable = sorted(context.connections.unreachable.items())
    return [index for index, worker in unreachable if worker.seconds > limit and not worker.transport_failed]


def lost_worker_failure(context: JobContext, index: int) -> Failure:
    """Return the failure that a worker stands for that counts as lost: `unreachable` if it was never reached."""
    error, now = context.connections.unreachable[index].error, context.clock.now()
    if context.was_reached(index):
        machines, hint = context.allocation, "the cloud reports the machine as running"
        slices = (machines.workers[index].slice,) if machines.slices > 1 else ()
        return Failure("host-lost", index, evidence=error, hint=hint, at=now, slices=slices)
    address = context.allocation.workers[index].address
    hint = f"it was never reachable: check the firewall, that {address} can be reached from here, and the login user"
    return Failure("unreachable", index, evidence=error, hint=hint, at=now)


def doubt_loss(context: JobContext, lost: Failure | None, running: Mapping[int, Worker]) -> str:
    """Return why it is not believed yet that machines are lost, as the allocator says; "" if it is.

    It may be wrong. It is believed once a preemption was announced, no program runs on these machines on a worker that
    answers, or it has said so for `watch.verdict_grace` of observed time. If all programs there have ended by
    themselves, workers that answer are a reason to doubt, too.

    Args:
        context: the job.
        lost: what the allocator's answer stands for; None if the machines are there.
        running: the workers that answer, and on which the program runs.
    """
    if lost is None:
        context.observed.end(DOUBTED)
        return ""
    grace, run = context.job.watch.verdict_grace, context.state.run
    every = context.allocation.workers
    concerned = [index for index in run.workers if not lost.slices or every[index].slice in lost.slices]
    alive = [] if context.terminator else [index for index in concerned if index in running]
    ended = [] if alive else _ended_by_themselves(context, concerned)
    if run.notice or not (alive or ended) or context.observed.observe(DOUBTED, VERDICT_POLL) >= grace:
        return ""
    indices = alive or ended
    workers = f"worker {indices[0]}" + (f" and {len(indices) - 1} more" if len(indices) > 1 else "")
    what = f"the program runs on {workers}" if alive else f"{workers} answer{'' if len(indices) > 1 else 's'}"
    return f"{lost.evidence}, but {what}; checking for {grace:.0f} s"


def _ended_by_themselves(context: JobContext, indices: Sequence[int]) -> list[int]:
    """Return these workers if the program has ended by itself on all of them, and all answer; else none.

    A program that has vanished, or whose machine has sent a signal, speaks for the loss of the machine.
    """
    endings, unreachable = context.state.endings, context.connections.unreachable
    found = [endings[index] for index in indices if index in endings and index not in unreachable]
    whole = len(found) == len(indices) and all(one.code is not None and not one.signal for one in found)
    return [*indices] if whole else []


def unreachable_report(context: JobContext) -> str:
    """Return which workers have been unreachable for more than a moment, and the error; "" if none has."""
    unreachable = context.connections.unreachable
    if problem := context.connections.transport_problem:
        return problem
    missing = sorted(index for index, worker in unreachable.items() if worker.seconds > REPORT_AFTER)
    if not missing:
        return ""
    worker = unreachable[missing[0]]
    # Each report is an event: for 5, 10, 20, 40, ... seconds.
    seconds = REPORT_AFTER * 2 ** int(math.log2(worker.seconds / REPORT_AFTER))
    one = len(missing) == 1
    verb = ("fails" if one else "fail") if worker.failing else "unreachable"
    more = "" if one else f" and {len(missing) - 1} more"
    return f"worker {missing[0]}{more} {verb} for {seconds:.0f} s ({worker.error})"
