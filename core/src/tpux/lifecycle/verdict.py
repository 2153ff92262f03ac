"""What ended an attempt: that the program had finished, or which failure is the root cause.

All exits and findings are gathered first. What the allocator says about the machines outranks them; a line in a log
does not, whatever its kind. The choice does not depend on the order in which the ends of the workers were observed:
each has its own time, by the worker's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpux.errors import TpuxError
from tpux.lifecycle.endings import ended_by_machine, exited_with_0, has_succeeded, runs_on
from tpux.lifecycle.turn import Turn
from tpux.model.failures import ENDED_BY_TPUX, Failure, FailureKind, Finished
from tpux.model.job import Attempt, WorkerExit
from tpux.model.machines import Inspection
from tpux.model.program_output import describe_code
from tpux.plugin import spec
from tpux.plugin.guard import PluginError

SIGKILLED = 137
Unanswered = dict[tuple[str, "int | None"], str]
"""Why a detector could not be asked whether the program finished, by its name and the worker; None: not about one."""
LESS_LIKELY: frozenset[FailureKind] = frozenset({"infra", "service", "program", "unknown", "incomplete"})
"""Kinds that often follow from another worker's failure: any other kind is the likelier root cause."""
NO_REASON = Failure("unknown", evidence="the attempt ended without a reason")


def verdict(
    turn: Turn, machines: Inspection, early_failure: Failure | None, unanswered: Unanswered
) -> Failure | Finished | None:
    """Return what ended the attempt.

    Args:
        turn: the step.
        machines: what the allocator last said about them.
        early_failure: why tpux ended the attempt, if it did.
        unanswered: receives which detectors could not be asked.

    Returns:
        None if the attempt has succeeded (`has_succeeded`); what shows that it had finished, where a detector that the
        job trusts says so: that outranks later failures, and the allocator's, but neither a notice of preemption nor a
        signal of a machine. Else the failure.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    if has_succeeded(turn, ended_early=early_failure is not None, lost=machines.failure is not None):
        return None
    section, notice, failed = turn.job.command, notice_failure(turn), failed_exits(turn)
    outranking = notice or machines.failure or early_failure
    # A program that is terminated writes the same record or line as one that has finished, so that proves nothing.
    was_signalled = notice is not None or any(ending.signal for ending in turn.state.endings.values())
    if outranking and (was_signalled or not section.finished_by):
        return outranking
    reports, findings, untrusted = ask_detectors(turn, machines, unanswered)
    if early_failure is not None and not runs_on(turn):
        reports = _before_the_end(reports, early_failure, _exits(turn))
    if not was_signalled and (finished := finished_before(reports, failed)):
        return finished
    if exited_with_0(turn) and not failed and outranking is None:
        return _incomplete(turn, unanswered)
    if outranking is not None:
        return outranking
    cause = _unmasked(turn, machines, root_cause(findings, failed), unanswered)
    hints = [f"if the program had finished, let {one} decide (command.finished_by: [{one}])" for one in untrusted]
    return replace(cause, hint="; ".join(filter(None, [cause.hint, *hints])))


def is_own_mistake(turn: Turn, machines: Inspection, found: Failure | Finished | None) -> bool:
    """Return whether each program that failed states an exception of its own, which no preemption explains."""
    own = [ended for ended in attempt_for_detectors(turn, machines).endings if ended.failed]
    stated = bool(own) and all(ended.code == 1 and ended.exception() for ended in own)
    calm = not turn.workers.unreachable and not any(ending.signal for ending in turn.state.endings.values())
    return stated and calm and isinstance(found, Failure) and found.kind == "program" and not found.symptom


def _unmasked(turn: Turn, machines: Inspection, cause: Failure, unanswered: Unanswered) -> Failure:
    """Return the cause on a worker that tpux ended, where those that ended by themselves have symptoms only.

    What its program printed until then counts. Without a cause the hint names the workers that were silent.
    """
    endings = turn.state.endings
    if not cause.symptom or len(turn.state.run.workers) == 1:
        return cause
    own = [ending.at for ending in endings.values() if ending.reason != ENDED_BY_TPUX]
    until = min(own, default=0.0) + turn.job.watch.straggler_grace  # no program was ended before that
    cut_off = [
        replace(ended, code=None, ended_by_tpux=False, until=until) for ended in _exits(turn) if ended.ended_by_tpux
    ]
    if cut_off:
        _, findings, _ = ask_detectors(turn, machines, unanswered, cut_off)
        if causes := [finding for finding in findings if not finding.symptom]:
            return replace(min(causes, key=_rank), others=len(own))
    silent = "".join(
        f"; worker {one.worker} had not ended: tpux logs {turn.number} --worker {one.worker}" for one in cut_off
    )
    stated = "" if turn.workers.unreachable else "no worker states a cause; "
    return replace(cause, hint=f"{stated}{cause.hint}{silent}")


def _incomplete(turn: Turn, unanswered: Unanswered) -> Failure:
    """Return the failure of a program that has exited with 0, and is not known to have finished."""
    names = turn.job.command.finished_by
    unknown = next((why for (name, _), why in sorted(unanswered.items(), key=str) if name in names), "")
    said = f"whether the program finished is unknown: {unknown}"
    evidence = said if unknown else f"{' or '.join(names)} does not report that it finished"
    hint = f"command.require_finished is set; see what the program did: tpux logs {turn.number}"
    return Failure("incomplete", evidence=f"exit code 0 on all workers, but {evidence}", hint=hint)


def _before_the_end(reports: Sequence[Finished], failure: Failure, exits: Sequence[WorkerExit]) -> list[Finished]:
    """Return the reports without those that a program may have caused when tpux ended it because of a failure."""
    by_themselves = {exit_.worker for exit_ in exits if not exit_.ended_by_tpux}
    since = failure.at or 0.0
    return [one for one in reports if one.worker in by_themselves or (one.at is not None and one.at < since)]


def ask_detectors(
    turn: Turn, machines: Inspection, unanswered: Unanswered, cut_off: Sequence[WorkerExit] = ()
) -> tuple[list[Finished], list[Failure], list[str]]:
    """Return what the detectors say: that the program has finished, from those that the job trusts, and failures.

    The last are the names of those that it does not trust and that say that the program has finished.

    Args:
        turn: the step.
        machines: what the allocator last said about them.
        unanswered: receives which detectors could not be asked.
        cut_off: the ends that they are asked about in place of all.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    job, attempt = turn.job, attempt_for_detectors(turn, machines)
    attempt = replace(attempt, endings=tuple(cut_off) or attempt.endings)
    reports: list[Finished] = []
    findings: list[Failure] = []
    untrusted: list[str] = []
    for name, answers in turn.plugins.call_each(job, spec.classify_failure, job=job, config=None, attempt=attempt):
        unanswered.pop((name, None), None)
        error = answers if isinstance(answers, TpuxError) else _unknown_worker(turn, name, answers)
        if error is not None:
            if not turn.errors.is_last_try(error):
                raise error
            unanswered[name, None] = error.message
            turn.waiting(f"{error.message}; continuing without it")
        elif not isinstance(answers, TpuxError):
            findings += [answer for answer in answers if isinstance(answer, Failure)]
            finished = [answer for answer in answers if isinstance(answer, Finished)]
            if name in job.command.finished_by:
                reports += finished
            elif finished:
                untrusted.append(name)
    return reports, findings, untrusted


def _unknown_worker(turn: Turn, name: str, answers: Sequence[Failure | Finished]) -> PluginError | None:
    """Return the error of a detector that names a worker that the machines do not have; None if it does not."""
    count = len(turn.machines.workers)
    for index, answer in enumerate(answers):
        if answer.worker is not None and answer.worker >= count:
            problem = f"[{index}].worker: expected the number of a worker, less than {count}, got {answer.worker}"
            return turn.plugins.guard.wrong_answer(spec.classify_failure, name, problem)
    return None


def attempt_for_detectors(turn: Turn, machines: Inspection) -> Attempt:
    """Return the current attempt as far as it is known."""
    state, exits = turn.state, (*_exits(turn), *_without_end(turn, machines))
    return Attempt(state.attempt, exits, machines.status, state.run.output_dir, state.collected, state.action.solve)


def failed_exits(turn: Turn) -> list[Failure]:
    """Return what the exit alone stands for of each worker that failed by itself, or that its machine has ended."""
    job, found = turn.number, []
    for exit_ in _exits(turn):
        ending = turn.state.endings[exit_.worker]
        if ended_by_machine(turn, ending) and not exit_.ended_by_tpux:
            evidence = f"its machine sent SIG{ending.signal}; {describe_code(ending.code or 0)}"
            found.append(Failure("infra", exit_.worker, evidence, f"tpux logs {job} --worker {exit_.worker}", exit_.at))
        elif exit_.failed:
            found.append(_from_exit(exit_, job))
    return found


def _without_end(turn: Turn, machines: Inspection) -> list[WorkerExit]:
    """Return, as detectors see them, the workers whose program has not ended, as far as is known."""
    state, now = turn.state, turn.clock.now()
    reason = machines.failure.evidence if machines.failure else "it has not ended"
    return [
        WorkerExit(index, None, turn.record.output_log(state.attempt, index), now, reason, ended_by_tpux=True)
        for index in state.run.workers
        if index not in state.endings
    ]


def notice_failure(turn: Turn) -> Failure | None:
    """Return the failure that a notice of preemption stands for, whatever the cloud says; None if there was none."""
    run = turn.state.run
    if not run.notice:
        return None
    return Failure("preempted", run.notice_worker, f"preemption announced: {run.notice}", at=turn.clock.now())


def _exits(turn: Turn) -> tuple[WorkerExit, ...]:
    number, log = turn.state.attempt, turn.record.output_log
    return tuple(
        WorkerExit(worker, ending.code, log(number, worker), ending.at, ending.reason, ending.reason == ENDED_BY_TPUX)
        for worker, ending in turn.state.endings.items()
    )


def _from_exit(ended: WorkerExit, job: int) -> Failure:
    """Return the failure that an exit code alone stands for: the program's own, unless a detector knows better."""
    hint = f"tpux logs {job} --worker {ended.worker}"
    if ended.code is None:
        evidence = ended.reason or "the program vanished"
        return Failure("infra", ended.worker, evidence=evidence, hint=hint, at=ended.at)
    if ended.code == SIGKILLED:
        hint = f"something killed it, most often the kernel because the worker's memory was exhausted; {hint}"
    evidence = describe_code(ended.code)
    if line := ended.statement():
        evidence += f": {line}"
    return Failure("program", ended.worker, evidence, hint, ended.at, code=ended.code)


def had_finished(turn: Turn, machines: Inspection, early_failure: Failure | None, unanswered: Unanswered) -> bool:
    """Return whether the program had finished before its machines were lost, as a detector says that the job trusts."""
    trusts = bool(turn.job.command.finished_by)
    return trusts and isinstance(verdict(turn, machines, early_failure, unanswered), Finished)


def reported_finished(turn: Turn, machines: Inspection, unanswered: Unanswered) -> bool:
    """Return whether a detector that the job trusts says that the program has finished."""
    if not turn.job.command.finished_by:
        return False
    reports, _, _ = ask_detectors(turn, machines, unanswered)
    return finished_before(reports, failed_exits(turn)) is not None


def root_cause(findings: Iterable[Failure], exits: Iterable[Failure]) -> Failure:
    """Return the root cause: the earliest of the likelier kinds that is no symptom.

    Args:
        findings: what the detectors report. On their workers the exit code alone counts no more.
        exits: what each worker's exit code alone stands for; none of a worker that tpux ended.

    Returns:
        The cause, with the exit code of its worker, and how many other workers failed.
    """
    of_worker = {exit_.worker: exit_ for exit_ in exits}
    causes = [_complete(finding, of_worker.get(finding.worker)) for finding in findings]
    explained = {cause.worker for cause in causes}
    causes += [exit_ for worker, exit_ in of_worker.items() if worker not in explained]
    cause = min(causes, key=_rank, default=NO_REASON)
    return replace(cause, others=len(of_worker.keys() - {cause.worker}))


def finished_before(reports: Iterable[Finished], exits: Iterable[Failure]) -> Finished | None:
    """Return what shows that the program had finished: the first report before which no other worker had failed.

    Args:
        reports: what the detectors that the job trusts report.
        exits: what each worker's exit code alone stands for; none of a worker that tpux ended.
    """
    failed = {exit_.worker: exit_.at or 0.0 for exit_ in exits}
    for report in sorted(reports, key=lambda one: (one.at or float("inf"), one.worker or 0, one.evidence)):
        at = failed.get(report.worker) if report.at is None and report.worker is not None else report.at
        if at is None or all(end >= at for worker, end in failed.items() if worker != report.worker):
            return report
    return None


def _complete(finding: Failure, exit_: Failure | None) -> Failure:
    """Return a detector's finding with what is known of the worker's end."""
    if exit_ is None:
        return finding
    at = exit_.at if finding.at is None else finding.at
    return replace(finding, at=at, code=exit_.code, hint=finding.hint or exit_.hint)


def _rank(failure: Failure) -> tuple[bool, bool, float, int, str, str]:
    """Rank causes before symptoms, then the likelier kinds, then the earliest."""
    return (
        failure.symptom,
        failure.kind in LESS_LIKELY,
        float("inf") if failure.at is None else failure.at,
        -1 if failure.worker is None else failure.worker,
        failure.kind,  # the rest only makes the choice the same each time
        failure.evidence,
    )
