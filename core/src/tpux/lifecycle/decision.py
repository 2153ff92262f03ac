"""What follows the end of an attempt, or another failure: a restart or the end, and what becomes of the machines.

`policy` has the rules, as functions of plain values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tpux import config
from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.turn import Next, Turn
from tpux.model.events import Failed, RequestAccepted, StateChanged
from tpux.model.failures import FAILURE_KINDS, Action, Failure
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.store.state import State


def after_attempt(turn: Turn) -> Next:
    """Return what follows an attempt whose end is on disk."""
    if (failure := turn.state.failure) is not None:
        return _after_failure(turn, failure)
    if restart := policy.after_success(_restarts(turn), turn.state.run.lasted):
        return _restart(turn, restart)
    return Next(StateChanged(to="succeeded", release_at=release_time(turn, "succeeded")))


def record_failure(turn: Turn, failure: Failure) -> Next:
    """Record a failure that did not end an attempt, and return what follows."""
    turn.write(Failed(failure=failure))
    return _after_failure(turn, failure)


def fail_and_release(turn: Turn, failure: Failure) -> Next:
    """Record a failure that no restart can end, and release the machines at once, unless the config forbids it."""
    turn.write(Failed(failure=failure))
    request = RequestAccepted(action="delete", number=0)
    release_at = policy.release_at("stopped", turn.clock.now(), _holding(turn), request)
    return Next(StateChanged(to="failed", why=failure.evidence, release_at=release_at))


def plugin_failure(error: PluginError, worker: int | None = None) -> Failure:
    """Return the failure of a job whose plugin failed for the last time."""
    return Failure("plugin", worker, evidence=error.message, hint=error.hint)


def _after_failure(turn: Turn, failure: Failure) -> Next:
    restarts, answer, why = _restarts(turn), None, failure.evidence or failure.kind
    if restarts.rule not in policy.RULES:
        try:
            answer = _ask_rule(turn, restarts, failure)
        except PluginError as error:
            if not turn.errors.is_last_try(error):
                raise
            why = f"{why}; {error.message}"
    following = policy.after_failure(failure.kind, restarts, answer)
    hint = ""
    if isinstance(following, policy.Restart):
        if not following.action.reapply or not (reason := _why_not_replaced(turn, failure)):
            return _restart(turn, following)
        why, hint = f"{reason}; {why}", f"{reason}; once that is repaired: tpux resume {turn.number}"
    elif following is not None:
        why, hint = f"{following.why}; {why}", f"{following.why}; {following.hint}"
    return Next(StateChanged(to="failed", why=why, hint=hint, release_at=release_time(turn, "failed")))


def _ask_rule(turn: Turn, restarts: policy.Restarts, failure: Failure) -> Action | None:
    """Return what the rule's plugin answers; None if it has no rule.

    Raises:
        PluginError: it failed, or its answer has keys of `tpu` that are not valid.
    """
    rule, job = restarts.rule, turn.job
    own, spent = job.sections.get(rule), dict.fromkeys(FAILURE_KINDS, 0) | {**restarts.spent}
    action = turn.plugins.call_one(rule, spec.on_preempt, job=job, config=own, failure=failure, restarts=spent)
    if action is not None and action.tpu:
        try:
            config.override_tpu(turn.opened.job.tpu, action.tpu)
        except TpuxError as error:
            raise turn.plugins.guard.wrong_answer(spec.on_preempt, rule, error.message) from error
    return action


def _why_not_replaced(turn: Turn, failure: Failure) -> str:
    """Return why the machines are not replaced after a failure that limits that itself, "" if they are."""
    if failure.replacements is None or turn.state.machines is None:
        return ""
    if turn.state.machines.borrowed:
        return f"{turn.state.machines.name} is not replaced: tpux did not create it"
    count = turn.state.restarts.get(failure.kind, 0)
    return f"the machines were replaced {count} times in a row" if count >= failure.replacements else ""


def _restart(turn: Turn, restart: policy.Restart) -> Next:
    action, state = restart.action, turn.state
    rerun = action.restart == "rerun" or (state.from_scratch and state.outputs)  # a rerun that has not started yet
    why = describe_start(state, from_scratch=bool(rerun))
    chosen = ", ".join(f"{key}={value}" for key, value in action.tpu.items())
    why += " on new machines" if action.reapply else " after repairs" if action.solve else ""
    why += f" with {chosen}" if chosen else ""
    why += f" in {restart.delay:.0f} s" if restart.delay else ""
    until = turn.clock.now() + restart.delay
    return Next(
        StateChanged(
            to="recovering",
            why=why,
            kind=restart.kind,
            restart="rerun" if rerun else action.restart,
            reapply=action.reapply,
            solve=action.solve,
            tpu=action.tpu,
            until=until,
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


def _restarts(turn: Turn) -> policy.Restarts:
    job, state = turn.job.job, turn.state
    rule = job.rule or policy.default_rule(turn.job.tpu.pricing)
    return policy.Restarts(
        rule, state.restarts, job.max_restarts, job.loop, has_run=state.attempt > 0, reapplied=state.reapplied
    )


def release_time(turn: Turn, end: Literal["succeeded", "failed", "stopped"]) -> float | None:
    """Return when the machines of a job that ends now are released; see `policy.release_at`."""
    return policy.release_at(end, turn.clock.now(), _holding(turn), turn.state.request)


def deletes_machines(turn: Turn, *, if_released: bool = False) -> bool:
    """Return whether the job is stopping and its machines are deleted next; see `policy.deletes_machines`.

    Args:
        turn: the step.
        if_released: whether they would be if the user requested their release now.
    """
    state = turn.state
    if state.state != "stopping" or state.request is None:
        return False
    request = replace(state.request, release=True) if if_released else state.request
    return policy.deletes_machines(_holding(turn), request)


def _holding(turn: Turn) -> policy.Holding:
    state, tpu = turn.state, turn.job_to_end().tpu
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
