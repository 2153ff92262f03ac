"""When a worker that does not answer counts as lost, and how long a program runs on after it has ended on others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpux.lifecycle.endings import ended_by_machine
from tpux.lifecycle.programs import open_workers
from tpux.lifecycle.turn import Turn
from tpux.model.events import Warned
from tpux.model.failures import Failure
from tpux.model.machines import Inspection, MachineStatus, Worker

REPORT_AFTER = 5.0
"""Seconds that a worker is unreachable before the job reports it."""

VERDICT_POLL = 3.0
"""Seconds between two checks whether machines are preempted, or lost."""
DOUBTED = "doubted"
"""The condition that programs run on machines that are lost, as the allocator says; its observed time is counted."""
AFTER_FAILURE, AFTER_SUCCESS = "straggling", "outlasting"
STRAGGLERS = "stragglers"
"""The kind of the warning about them."""
"""Conditions whose observed time is counted: the program runs on after it has failed on a worker; no worker has ended
since others have, all with exit code 0."""


@dataclass
class Contact:
    """What is known of the machines while a program runs on them.

    Attributes:
        inspection: the allocator's last answer; without its failure while that is doubted.
        doubt: why it is not believed yet, "" if it is.
        inspect_at: when the allocator is asked next (monotonic).
        last_tries: the workers that count as lost if they do not answer now.
    """

    inspection: Inspection = field(default_factory=lambda: Inspection(MachineStatus("ready")))
    doubt: str = ""
    inspect_at: float = 0.0
    last_tries: set[int] = field(default_factory=set)


def lost_after(turn: Turn) -> float:
    """Return for how many seconds a worker is waited for that does not answer: not long after a notice."""
    watch = turn.job.watch
    return min(watch.verdict_grace, watch.lost_after) if turn.state.run.notice else watch.lost_after


def overdue_workers(turn: Turn) -> list[int]:
    """Return the workers that were observed to be unreachable for the time that `lost_after` returns.

    They count as lost only if the allocator, asked again, reports the machines as ready, and one more login fails.
    """
    limit = lost_after(turn)
    unreachable = sorted(turn.workers.unreachable.items())
    return [index for index, worker in unreachable if worker.seconds > limit and not worker.transport_failed]


def was_reached(turn: Turn, worker: int) -> bool:
    """Return whether a worker has answered since the machines were allocated."""
    run = turn.state.run
    return worker in turn.workers.reached or (run.running and worker in run.workers)


def lost_worker_failure(turn: Turn, index: int) -> Failure:
    """Return the failure that a worker stands for that counts as lost: `unreachable` if it was never reached.

    `plugin` if the transport's plugin has failed, which says nothing about the worker.
    """
    lost, now = turn.workers.unreachable[index], turn.clock.now()
    error = lost.error
    if lost.transport_failed:
        return Failure("plugin", index, evidence=error, hint="see the transport's plugin: tpux plugins list", at=now)
    if was_reached(turn, index):
        hint = "the cloud reports the machine as running"
        return Failure("host-lost", index, evidence=error, hint=hint, at=now)
    address = turn.machines.workers[index].address
    hint = f"it was never reachable: check the firewall, that {address} can be reached from here, and the login user"
    return Failure("unreachable", index, evidence=error, hint=hint, at=now)


def why_unconfirmed(turn: Turn, machines: Inspection, running: Mapping[int, Worker]) -> str:
    """Return why it is not believed yet that machines are lost, as the allocator says; "" if it is.

    It may be wrong. It is believed once it is confirmed, a preemption was announced, no program runs on these machines
    on a worker that answers, or the answer has been the same for `watch.verdict_grace` of observed time. If all
    programs there have ended by themselves, workers that answer are a reason to doubt, too.

    Args:
        turn: the step.
        machines: the allocator's answer.
        running: the workers that answer, and on which the program runs.
    """
    lost = machines.failure
    if lost is None or machines.status.confirmed:
        turn.workers.observed.end(DOUBTED)
        return ""
    grace, run = turn.job.watch.verdict_grace, turn.state.run
    every = turn.machines.workers
    concerned = [index for index in run.workers if not lost.slices or every[index].slice in lost.slices]
    alive = [] if turn.termination.begun else [index for index in concerned if index in running]
    ended = [] if alive else _ended_by_themselves(turn, concerned)
    if run.notice or not (alive or ended) or turn.workers.observed.observe(DOUBTED, VERDICT_POLL) >= grace:
        return ""
    indices = alive or ended
    workers = f"worker {indices[0]}" + (f" and {len(indices) - 1} more" if len(indices) > 1 else "")
    what = f"the program runs on {workers}" if alive else f"{workers} answer{'' if len(indices) > 1 else 's'}"
    return f"{lost.evidence}, but {what}; checking for {grace:.0f} s"


def _ended_by_themselves(turn: Turn, indices: Sequence[int]) -> list[int]:
    """Return these workers if the program has ended by itself on all of them, and all answer; else none.

    A program that has vanished, or whose machine has sent a signal, speaks for the loss of the machine.
    """
    endings, unreachable = turn.state.endings, turn.workers.unreachable
    found = [endings[index] for index in indices if index in endings and index not in unreachable]
    whole = len(found) == len(indices) and all(one.code is not None and not one.signal for one in found)
    return [*indices] if whole else []


def unreachable_report(turn: Turn) -> str:
    """Return which workers have been unreachable for more than a moment, and the error; "" if none has."""
    unreachable = turn.workers.unreachable
    if problem := turn.workers.transport_problem:
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


def has_failed(turn: Turn) -> bool:
    """Return whether the program has failed on a worker, or was ended there by the machine."""
    return any(ending.code != 0 or ended_by_machine(turn, ending) for ending in turn.state.endings.values())


@dataclass
class Stragglers:
    """Counts for how long the program runs on some workers after it has ended on others.

    After a failure they are terminated: they would wait for their lost peer. After exit codes of 0 they are only
    reported, since one may be saving the last checkpoint for all of them.

    Attributes:
        problem: which workers outlast the others; "" if none does, or not for `watch.straggler_grace`.
        hint: what the user can do about them; "" if there is no problem.
    """

    problem: str = ""
    hint: str = ""
    _ended: int | None = None
    _reported: bool | None = None

    def are_overdue(self, turn: Turn, interval: float) -> bool:
        """Count the time, and report workers that outlast those that have ended with 0.

        Args:
            turn: the step.
            interval: seconds until the next call.

        Returns:
            Whether the program failed on a worker `watch.straggler_grace` ago, and is to be terminated on the others.
        """
        self.problem = self.hint = ""
        endings, grace = turn.state.endings, turn.job.watch.straggler_grace
        if has_failed(turn):
            return turn.workers.observed.observe(AFTER_FAILURE, interval) > grace
        running = [*open_workers(turn, without=turn.workers.unreachable)]
        if self._ended not in (None, len(endings)):
            turn.workers.observed.end(AFTER_SUCCESS)
        self._ended = len(endings)
        if endings and running and turn.workers.observed.observe(AFTER_SUCCESS, interval) > grace:
            self._report(turn, running)
        return False

    def _report(self, turn: Turn, running: list[int]) -> None:
        first, more, ended = running[0], len(running) - 1, len(turn.state.endings)
        others = f" and {more} more" if more else ""
        has_ended = "on 1 other" if ended == 1 else f"on {ended} others"
        self.problem = f"the program still runs on worker {first}{others}; {has_ended} it has ended with exit code 0"
        job = turn.number
        self.hint = (
            f"what it does: tpux logs {job} --worker {first} -n 20; if it hangs: tpux stop {job}"
            " (job.stalled_after ends a silent program by itself)"
        )
        if self._reported is None:  # perhaps a former supervisor has
            self._reported = _is_reported(turn)
        if not self._reported:
            self._reported = True
            turn.write(Warned(kind=STRAGGLERS, workers=tuple(running), text=self.problem, hint=self.hint))


def _is_reported(turn: Turn) -> bool:
    warnings = (event for event, _ in turn.record.events() if isinstance(event, Warned))
    return any((event.kind, event.attempt) == (STRAGGLERS, turn.state.attempt) for event in warnings)
