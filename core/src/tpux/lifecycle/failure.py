"""Find what ended an attempt, and what follows. All exits and findings are gathered first (`root_cause` chooses)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.endings import ENDED_BY_TPUX, ended_by_machine, exited_with_0, has_succeeded
from tpux.lifecycle.progress import final_progress
from tpux.lifecycle.root_cause import finished_before, root_cause
from tpux.model.events import AttemptEnded, Failed, RequestAccepted, StateChanged
from tpux.model.failures import Failure, Finished
from tpux.model.job import Attempt, WorkerExit
from tpux.model.program_output import describe_code
from tpux.plugin import spec
from tpux.plugin.guard import PluginError

if TYPE_CHECKING:
    from tpux.model.machines import Inspection
    from tpux.store.state import State

SIGKILLED = 137


def finish_attempt(context: JobContext, machines: Inspection, early_failure: Failure | None = None) -> Next:
    """Record how the attempt ended, and return what follows.

    Args:
        context: the job; the command has ended on all workers, or the machines are gone.
        machines: what the allocator last said about them.
        early_failure: why tpux ended the attempt, if it did.
    """
    verdict = classify(context, machines, early_failure)
    if isinstance(verdict, Finished):
        write_attempt_end(context, None, finished=verdict.evidence)
    else:
        write_attempt_end(context, _with_hung_processes(context, verdict))
    return next_state(context)


def _with_hung_processes(context: JobContext, failure: Failure | None) -> Failure | None:
    """Return a failure with the processes that could not be ended: they keep the next attempt from starting."""
    if failure is None or context.terminator is None or not context.terminator.hung:
        return failure
    return replace(failure, evidence="; ".join(filter(None, [failure.evidence, *context.terminator.hung.values()])))


def write_attempt_end(
    context: JobContext, failure: Failure | None, *, stopped: bool = False, finished: str = ""
) -> None:
    """Write that the current attempt has ended.

    Args:
        context: the job.
        failure: what ended it; None if it succeeded or was stopped.
        stopped: a user stopped it.
        finished: what shows that the program had finished, where a detector says so.
    """
    reset = not stopped and resets_restarts(context)
    progress, repeated = final_progress(context)
    ended = AttemptEnded(
        attempt=context.state.attempt,
        failure=failure,
        stopped=stopped,
        restarts_reset=reset,
        finished=finished,
        progress=progress,
        repeated_steps=repeated,
    )
    context.write(ended)


def resets_restarts(context: JobContext) -> bool:
    """Return whether the current attempt has lasted long enough for the job to get all its restarts back.

    That is real time from the first call in this process on, so a clock that is set meanwhile changes nothing.
    """
    left = context.deadlines.left(context.state.run.started_at + policy.HEALTHY_AFTER, policy.HEALTHY_AFTER)
    return policy.resets_restarts(policy.HEALTHY_AFTER - left)


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


def fail_and_release(context: JobContext, failure: Failure) -> Next:
    """Record a failure that no restart can end, and release the machines at once, unless the config forbids it."""
    context.write(Failed(failure=failure))
    request = RequestAccepted(action="delete", number=0)
    release_at = policy.release_at("stopped", context.clock.now(), _holding(context), request)
    return Next(StateChanged(to="failed", why=failure.evidence, release_at=release_at))


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
    action, state = restart.action, context.state
    rerun = action.restart == "rerun" or (state.from_scratch and state.outputs)  # a rerun that has not started yet
    why = describe_start(state, from_scratch=bool(rerun))
    why += " on new machines" if action.reapply else " after repairs" if action.solve else ""
    why += f" in {restart.delay:.0f} s" if restart.delay else ""
    until = context.clock.now() + restart.delay
    lost = lost_slices(context, state.failure) if action.reapply else ()
    if lost:
        why = why.replace(" on new machines", f" with {describe_slices(lost)} replaced")
    return Next(
        StateChanged(
            to="recovering",
            why=why,
            kind=restart.kind,
            restart="rerun" if rerun else action.restart,
            reapply=action.reapply,
            solve=action.solve,
            until=until,
            lost=lost,
        )
    )


def describe_start(state: State, *, from_scratch: bool) -> str:
    """Return what the job does next, for people: a resume or rerun is one only if an attempt has ended before.

    Args:
        state: the job's state.
        from_scratch: the next attempt starts from scratch.
    """
    verb = "starting" if not state.outputs else "rerunning" if from_scratch else "resuming"
    return f"{verb} (attempt {state.attempt + 1})"


def lost_slices(context: JobContext, failure: Failure | None) -> tuple[int, ...]:
    """Return the slices that are replaced after a failure while the others are kept; none if all are replaced."""
    if failure is None or failure.kind not in policy.MACHINE_FAILURES or context.state.allocation is None:
        return ()
    return failure.slices if context.job.tpu.replaces_slices else ()


def describe_slices(slices: Sequence[int]) -> str:
    """Return which slices, for people."""
    return ("slice " if len(slices) == 1 else "slices ") + ", ".join(map(str, slices))


def _restarts(context: JobContext) -> policy.Restarts:
    job, state = context.job.job, context.state
    rule = job.rule or policy.default_rule(context.job.tpu.pricing)
    return policy.Restarts(
        rule, state.restarts, job.max_restarts, job.loop, has_run=state.attempt > 0, reapplied=state.reapplied
    )


def release_time(context: JobContext, end: Literal["succeeded", "failed", "stopped"]) -> float | None:
    """Return when the machines of a job that ends now are released; see `policy.release_at`."""
    return policy.release_at(end, context.clock.now(), _holding(context), context.state.request)


def deletes_machines(context: JobContext, *, if_released: bool = False) -> bool:
    """Return whether the job is stopping and its machines are deleted next; see `policy.deletes_machines`.

    Args:
        context: the job.
        if_released: whether they would be if the user requested their release now.
    """
    state = context.state
    if state.state != "stopping" or state.request is None:
        return False
    request = replace(state.request, release=True) if if_released else state.request
    return policy.deletes_machines(_holding(context), request)


def _holding(context: JobContext) -> policy.Holding:
    state, tpu = context.state, context.releasable_job.tpu
    machines, keep = state.machines, tpu.keep_on_failure
    return policy.Holding(
        requested=state.requested,
        allocated=machines is not None,
        costs=machines is not None and machines.costs,
        release=tpu.release,
        keep_on_failure=policy.default_keep_on_failure(tpu.pricing) if keep is None else keep,
        keep_on_stop=tpu.keep_on_stop,
        borrowed=machines is not None and machines.borrowed,
        releasing=state.releasing,
    )


def classify(context: JobContext, machines: Inspection, early_failure: Failure | None) -> Failure | Finished | None:
    """Return what ended the attempt.

    Returns:
        None if the attempt has succeeded (`has_succeeded`); what shows that it had finished, where a detector that the
        job trusts says so: that outranks later failures, and the allocator's, but neither a notice of preemption nor a
        signal of a machine. Else the failure.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    if has_succeeded(context, ended_early=early_failure is not None, lost=machines.failure is not None):
        return None
    section, notice, failed = context.job.command, notice_failure(context), failed_exits(context)
    lost = notice or machines.failure or early_failure
    # A program that is terminated writes the same record or line as one that has finished, so that proves nothing.
    told_to_end = notice is not None or any(ending.signal for ending in context.state.endings.values())
    if lost and (told_to_end or not section.finished_by):
        return lost
    claims, findings = ask_detectors(context, machines)
    if early_failure is not None:
        claims = _before_the_end(claims, early_failure, _exits(context))
    if not told_to_end and (finished := finished_before(claims, failed)):
        return finished
    if exited_with_0(context) and not failed and lost is None:
        return _incomplete(context)
    return lost or _with_slices(context, root_cause(findings, failed), findings)


def _incomplete(context: JobContext) -> Failure:
    """Return the failure of a program that has exited with 0, and is not known to have finished."""
    names, unanswered = context.job.command.finished_by, context.unanswered
    unknown = next((why for (name, _), why in sorted(unanswered.items(), key=str) if name in names), "")
    said = f"whether the program finished is unknown: {unknown}"
    evidence = said if unknown else f"{' or '.join(names)} does not report that it finished"
    hint = f"command.require_finished is set; see what the program did: tpux logs {int(context.job.id)}"
    return Failure("incomplete", evidence=f"exit code 0 on all workers, but {evidence}", hint=hint)


def _before_the_end(claims: Sequence[Finished], failure: Failure, exits: Sequence[WorkerExit]) -> list[Finished]:
    """Return the claims without those that a program may have caused when tpux ended it because of a failure."""
    by_themselves = {exit_.worker for exit_ in exits if not exit_.ended_by_tpux}
    since = failure.at or 0.0
    return [one for one in claims if one.worker in by_themselves or (one.at is not None and one.at < since)]


def _with_slices(context: JobContext, cause: Failure, findings: Sequence[Failure]) -> Failure:
    """Return a cause that concerns machines with their slices: all that a detector calls lost are replaced at once."""
    machines = context.allocation
    lost = [one for one in findings if one.kind in policy.MACHINE_FAILURES and not one.symptom]
    workers = [one.worker for one in lost if one.worker is not None]
    if cause.kind not in policy.MACHINE_FAILURES or machines.slices == 1 or len(workers) < len(lost):
        return cause
    return replace(cause, slices=tuple(sorted({machines.workers[worker].slice for worker in workers})))


def ask_detectors(context: JobContext, machines: Inspection) -> tuple[list[Finished], list[Failure]]:
    """Return what the detectors say: that the program has finished, from those that the job trusts, and failures.

    Raises:
        PluginError: a plugin's `classify_failure` failed.
    """
    job, attempt = context.job, attempt_for_detectors(context, machines)
    claims: list[Finished] = []
    findings: list[Failure] = []
    for name, answers in context.plugins.call_each(job, spec.classify_failure, job=job, config=None, attempt=attempt):
        context.unanswered.pop((name, None), None)
        error = answers if isinstance(answers, TpuxError) else _unknown_worker(context, name, answers)
        if error is not None:
            if not context.is_last_try(error):
                raise error
            context.unanswered[name, None] = error.message
            context.waiting(f"{error.message}; continuing without it")
        elif not isinstance(answers, TpuxError):
            trusted = name in job.command.finished_by
            claims += [answer for answer in answers if isinstance(answer, Finished) and trusted]
            findings += [answer for answer in answers if isinstance(answer, Failure)]
    return claims, findings


def _unknown_worker(context: JobContext, name: str, answers: Sequence[Failure | Finished]) -> PluginError | None:
    """Return the error of a detector that names a worker that the machines do not have; None if it does not."""
    count = len(context.allocation.workers)
    for index, answer in enumerate(answers):
        if answer.worker is not None and answer.worker >= count:
            problem = f"[{index}].worker: expected the number of a worker, less than {count}, got {answer.worker}"
            return context.plugins.guard.wrong_answer(spec.classify_failure, name, problem)
    return None


def attempt_for_detectors(context: JobContext, machines: Inspection) -> Attempt:
    """Return the current attempt as far as it is known."""
    state, exits = context.state, (*_exits(context), *_without_end(context, machines))
    return Attempt(state.attempt, exits, machines.status, state.run.output_dir, state.collected)


def failed_exits(context: JobContext) -> list[Failure]:
    """Return what the exit alone stands for of each worker that failed by itself, or that its machine has ended."""
    job, found = int(context.job.id), []
    for exit_ in _exits(context):
        ending = context.state.endings[exit_.worker]
        if ended_by_machine(context, ending) and not exit_.ended_by_tpux:
            evidence = f"its machine sent SIG{ending.signal}; {describe_code(ending.code or 0)}"
            found.append(Failure("infra", exit_.worker, evidence, f"tpux logs {job} --worker {exit_.worker}", exit_.at))
        elif exit_.failed:
            found.append(_from_exit(exit_, job))
    return found


def _without_end(context: JobContext, machines: Inspection) -> list[WorkerExit]:
    """Return, as detectors see them, the workers whose program has not ended, as far as is known."""
    state, now = context.state, context.clock.now()
    reason = machines.failure.evidence if machines.failure else "it has not ended"
    return [
        WorkerExit(index, None, context.record.output_log(state.attempt, index), now, reason, ended_by_tpux=True)
        for index in state.run.workers
        if index not in state.endings
    ]


def notice_failure(context: JobContext) -> Failure | None:
    """Return the failure that a notice of preemption stands for, whatever the cloud says; None if there was none."""
    run = context.state.run
    if not run.notice:
        return None
    return Failure("preempted", run.notice_worker, f"preemption announced: {run.notice}", at=context.clock.now())


def _exits(context: JobContext) -> tuple[WorkerExit, ...]:
    number, log = context.state.attempt, context.record.output_log
    return tuple(
        WorkerExit(worker, ending.code, log(number, worker), ending.at, ending.reason, ending.reason == ENDED_BY_TPUX)
        for worker, ending in context.state.endings.items()
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
