"""Find what ended an attempt, and what follows. All exits and findings are gathered first, then ranked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.context import JobContext, Next
from tpux.plugin import spec
from tpux.plugin.events import AttemptEnded, Failed, StateChanged
from tpux.plugin.failures import Failure, FailureKind, Finished
from tpux.plugin.guard import PluginError
from tpux.plugin.job import Attempt, WorkerExit

if TYPE_CHECKING:
    from tpux.lifecycle.allocation import Inspection

SYMPTOMS: frozenset[FailureKind] = frozenset({"infra", "program", "unknown", "incomplete"})
"""Kinds that often follow from another worker's failure: any other kind is the likelier root cause."""
TAIL = 4096
"""How many bytes at the end of a log are searched for its last line."""


def finish_attempt(context: JobContext, machines: Inspection, early_failure: Failure | None = None) -> Next:
    """Record how the attempt ended, and return what follows.

    Args:
        context: the job; the command has ended on all workers, or the machines are gone.
        machines: what the allocator last said about them.
        early_failure: why tpux ended the attempt, if it did.
    """
    failure = classify(context, machines, early_failure)
    write_attempt_end(context, failure)
    return next_state(context)


def write_attempt_end(context: JobContext, failure: Failure | None, *, stopped: bool = False) -> None:
    """Write that the current attempt has ended.

    Args:
        context: the job.
        failure: what ended it; None if it succeeded or was stopped.
        stopped: a user stopped it.
    """
    lasted = context.clock.now() - context.state.run.started_at
    reset = policy.resets_restarts(lasted)
    context.write(AttemptEnded(attempt=context.state.attempt, failure=failure, stopped=stopped, restarts_reset=reset))


def next_state(context: JobContext) -> Next:
    """Return what follows an attempt whose end is on disk."""
    if (failure := context.state.failure) is not None:
        return _after_failure(context, failure)
    if restart := policy.after_success(_restarts(context), context.state.run.lasted):
        return _restart(context, restart)
    return Next(StateChanged(to="succeeded", release_at=release_time(context, "succeeded")))


def record_failure(context: JobContext, failure: Failure) -> Next:
    """Record a failure that did not end an attempt, and return what follows."""
    context.write(Failed(failure=failure))
    return _after_failure(context, failure)


def plugin_failure(error: PluginError, worker: int | None = None) -> Failure:
    """Return the failure of a job whose plugin failed for the last time."""
    return Failure("plugin", worker, evidence=error.message, hint=error.hint)


def _after_failure(context: JobContext, failure: Failure) -> Next:
    restarts, answer, why = _restarts(context), None, failure.evidence or failure.kind
    if restarts.rule not in policy.RULES:
        try:
            answer = context.plugins.call_one(restarts.rule, spec.on_preempt, job=context.job, failure=failure)
        except PluginError as error:
            if not context.is_last_try(error):
                raise
            why = f"{why}; {error.message}"
    following = policy.after_failure(failure.kind, restarts, answer)
    if isinstance(following, policy.Restart):
        return _restart(context, following)
    hint = ""
    if following is not None:
        why, hint = f"{following.why}; {why}", f"{following.why}; {following.hint}"
    return Next(StateChanged(to="failed", why=why, hint=hint, release_at=release_time(context, "failed")))


def _restart(context: JobContext, restart: policy.Restart) -> Next:
    action = restart.action
    why = ("rerunning" if action.restart == "rerun" else "resuming") + f" (attempt {context.state.attempt + 1})"
    why += " on new machines" if action.reapply else " after repairs" if action.solve else ""
    why += f" in {restart.delay:.0f} s" if restart.delay else ""
    until = context.clock.now() + restart.delay
    return Next(
        StateChanged(
            to="recovering",
            why=why,
            kind=restart.kind,
            restart=action.restart,
            reapply=action.reapply,
            solve=action.solve,
            until=until,
        )
    )


def _restarts(context: JobContext) -> policy.Restarts:
    job, state = context.job.job, context.state
    rule = job.rule or policy.default_rule(context.job.tpu.pricing)
    return policy.Restarts(
        rule, state.restarts, job.max_restarts, job.loop, has_run=state.attempt > 0, reapplied=state.reapplied
    )


def release_time(context: JobContext, end: Literal["succeeded", "failed", "stopped"]) -> float | None:
    """Return when the machines of a job that ends now are released; see `policy.release_at`."""
    return policy.release_at(end, context.clock.now(), _holding(context), context.state.request)


def deletes_machines(context: JobContext) -> bool:
    """Return whether the job is stopping and its machines are deleted next; see `policy.deletes_machines`."""
    state = context.state
    if state.state != "stopping" or state.request is None:
        return False
    return policy.deletes_machines(_holding(context), state.request)


def _holding(context: JobContext) -> policy.Holding:
    state, tpu = context.state, context.job.tpu
    machines, keep = state.machines, tpu.keep_on_failure
    return policy.Holding(
        requested=state.requested,
        allocated=machines is not None,
        costs=machines is not None and machines.costs,
        release=tpu.release,
        keep_on_failure=policy.default_keep_on_failure(tpu.pricing) if keep is None else keep,
        keep_on_stop=tpu.keep_on_stop,
        borrowed=machines is not None and machines.borrowed,
    )


def classify(context: JobContext, machines: Inspection, early_failure: Failure | None) -> Failure | None:
    """Return what ended the attempt; None if the command exited with 0 on every worker.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    exits = _exits(context)
    if len(exits) == len(context.state.run.workers) and all(e.code == 0 for e in exits):
        return None
    if failure := machines.failure or early_failure:
        return failure
    attempt = Attempt(context.state.attempt, exits, machines.status)
    findings: list[Failure] = []
    for name, answers in context.plugins.call_each(context.job, spec.classify_failure, attempt=attempt):
        error = answers if isinstance(answers, TpuxError) else _unknown_worker(context, name, answers)
        if error is not None:
            if not context.is_last_try(error):
                raise error
            context.waiting(f"{error.message}; continuing without it")
        elif not isinstance(answers, TpuxError):
            findings += [answer for answer in answers if isinstance(answer, Failure)]
    findings += [  # last, since of equal ones a detector's has a better hint
        _from_exit(exit_, f"tpux logs {int(context.job.id)} --worker {exit_.worker}")
        for exit_ in exits
        if exit_.code != 0 and not exit_.reason.startswith("ended")
    ]
    return min(findings, key=_rank, default=Failure("unknown", evidence="the attempt ended without a reason"))


def _unknown_worker(context: JobContext, name: str, answers: Sequence[Failure | Finished]) -> PluginError | None:
    """Return the error of a detector that names a worker that the machines do not have; None if it does not."""
    count = len(context.allocation.workers)
    for index, answer in enumerate(answers):
        if isinstance(answer, Failure) and answer.worker is not None and answer.worker >= count:
            problem = f"[{index}].worker: expected the number of a worker, less than {count}, got {answer.worker}"
            return context.plugins.guard.wrong_answer(spec.classify_failure, name, problem)
    return None


def _rank(failure: Failure) -> tuple[bool, bool, float]:
    """Rank what the machines say first, then root causes before symptoms, then the earliest."""
    at = failure.at if failure.at is not None else float("inf")
    return failure.kind not in policy.MACHINE_FAILURES, failure.kind in SYMPTOMS, at


def _exits(context: JobContext) -> tuple[WorkerExit, ...]:
    number, log = context.state.attempt, context.record.output_log
    return tuple(
        WorkerExit(worker, ending.code, log(number, worker), ending.at, ending.reason)
        for worker, ending in context.state.endings.items()
    )


def _from_exit(ended: WorkerExit, hint: str) -> Failure:
    """Return the failure that an exit code alone stands for: the program's own, unless a detector knows better."""
    if ended.code is None:
        return Failure("infra", ended.worker, evidence=ended.reason or "the program vanished", at=ended.at)
    evidence = f"exit code {ended.code}"
    if line := last_line(ended.log):
        evidence += f": {line}"
    return Failure("program", ended.worker, evidence, hint=hint, at=ended.at)


def last_line(log: Path) -> str:
    """Return the last line of a file that is not blank, or the last state of a progress bar, shortened."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    except FileNotFoundError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
