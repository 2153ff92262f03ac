"""What ended an attempt: all endings and findings are gathered first, then ranked."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tpux.lifecycle.context import JobContext
from tpux.lifecycle.machine_status import machines_failure
from tpux.lifecycle.policy import MACHINE_FAILURES
from tpux.lifecycle.release import release_at
from tpux.lifecycle.restart import ENDED_AT_ONCE, recover_or_fail, restart_after
from tpux.plugin import spec
from tpux.plugin.failures import Action, Failure, FailureKind
from tpux.plugin.job import Attempt, WorkerExit
from tpux.plugin.machines import MachineStatus

SYMPTOMS: frozenset[FailureKind] = frozenset({"infra", "program", "unknown", "incomplete"})
"""Kinds that are often the echo of another worker's failure: any other kind is the likelier root cause."""
TAIL = 4096
"""How many bytes of a log's end are searched for its last line."""


def judge(context: JobContext, machines: MachineStatus, verdict: Failure | None = None) -> float:
    """Write down how the attempt ended, and go on to what follows.

    Args:
        context: the job; all its workers have ended, or the machines are gone.
        machines: what the allocator says about them.
        verdict: what the watch ended the attempt for, if it did.
    """
    failure = _cause(context, machines, verdict)
    context.attempt_ended(failure)
    context.unlearn()
    return go_on(context)


def go_on(context: JobContext) -> float:
    """Go on to what follows on an attempt whose end is written down."""
    if (failure := context.state.last_failure) is not None:
        return recover_or_fail(context, failure)
    if context.job.job.loop:
        lasted = cast("float", context.state.run["lasted"])
        looped = context.state.restarts.get("loop", 0)
        pause = min(10.0 * 2.0**looped, 300.0) if lasted < ENDED_AT_ONCE else 0.0
        restart_after(context, Action("resume"), "loop", pause)
    else:
        context.move("succeeded", release_at=release_at(context, "succeeded"))
    return 0


def _cause(context: JobContext, machines: MachineStatus, verdict: Failure | None) -> Failure | None:
    endings = _endings(context)
    if len(endings) == len(cast("list[int]", context.state.run["workers"])) and all(e.code == 0 for e in endings):
        return None
    if failure := machines_failure(context, machines):
        return failure
    if verdict is not None:
        return verdict
    attempt = Attempt(context.state.attempt, endings, machines)
    findings = [
        _own_finding(ending) for ending in endings if ending.code != 0 and not ending.reason.startswith("ended")
    ]
    for _, answers in context.plugins.call_all(spec.classify_failure, attempt=attempt):
        findings += [answer for answer in answers if isinstance(answer, Failure)]
    return min(findings, key=_rank, default=Failure("unknown", evidence="the attempt ended without a reason"))


def _rank(failure: Failure) -> tuple[bool, bool, float]:
    """What the machines say, then root causes before symptoms, then the earliest."""
    at = failure.at if failure.at is not None else float("inf")
    return failure.kind not in MACHINE_FAILURES, failure.kind in SYMPTOMS, at


def _endings(context: JobContext) -> tuple[WorkerExit, ...]:
    return tuple(
        WorkerExit(
            worker=int(worker),
            code=cast("int | None", ending["code"]),
            log=context.output_log(int(worker)),
            at=cast("float", ending["at"]),
            reason=cast("str", ending.get("reason") or ""),
        )
        for worker, ending in context.state.endings.items()
    )


def _own_finding(ending: WorkerExit) -> Failure:
    """What an exit code alone says: a program that said nothing else has failed by itself."""
    if ending.code is None:
        return Failure("infra", ending.worker, evidence=ending.reason or "the program vanished", at=ending.at)
    evidence = f"exit code {ending.code}"
    if line := last_line(ending.log):
        evidence += f": {line}"
    return Failure("program", ending.worker, evidence, hint="see the end of its log", at=ending.at)


def last_line(log: Path) -> str:
    """The last line with anything in it, shortened."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
