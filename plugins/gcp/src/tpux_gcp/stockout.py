"""The order of accelerators and zones, and what follows a stockout or another failed creation.

The request fails, the next candidate is tried, or tpux backs off and starts over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from tpux import Denied, Failure, UsageError, Waiting
from tpux.fields import Backoff, FailureKind, workers_of
from tpux_gcp import borrowing, login
from tpux_gcp.errors import (
    NO_CAPACITY,
    REFUSED,
    RETRYABLE,
    CloudError,
    InvalidConfigError,
    Problem,
    ProblemKind,
    hint_for,
    lacks_type,
)
from tpux_gcp.request import Answer, RequestContext, deny
from tpux_gcp.resource import TpuResource
from tpux_gcp.section import GcpTpuSection
from tpux_gcp.spec import Candidate, accelerator_fields

BACKOFF = Backoff(first=30.0, cap=300.0)
"""After each round in which all candidates were tried once."""
SAME_EXPIRY = 3600.0
"""A request that lived longer, in seconds, has failed as the login has expired once more, not still."""


def find_candidates(tpu: GcpTpuSection, default_zone: str) -> list[Candidate]:
    """Return all combinations in the order in which they are tried: each accelerator in all zones.

    Args:
        tpu: the config's `tpu` section.
        default_zone: used if that names no zone.

    Raises:
        InvalidConfigError: there is no zone or no accelerator, or an accelerator does not exist.
    """
    accelerators = _as_list(tpu.accelerator)
    zones = _as_list(tpu.zone) or _as_list(default_zone)
    if not accelerators:
        raise InvalidConfigError("tpu.accelerator is not set", "for example tpu.accelerator: v4-32")
    if not zones:
        raise InvalidConfigError(
            "tpu.zone is not set", "for example tpu.zone: us-central2-b; `tpux tpu types` lists what each zone has"
        )
    for accelerator in accelerators:
        try:
            workers_of(accelerator)
        except UsageError as error:
            raise InvalidConfigError(error.message, error.hint) from error
        accelerator_fields(tpu, accelerator)  # checks the topology
    return list(dict.fromkeys(Candidate(accelerator, zone) for accelerator in accelerators for zone in zones))


def candidates_of(context: RequestContext) -> list[Candidate]:
    """Return all candidates of a request in the order in which they are tried.

    Raises:
        InvalidConfigError: the config has none.
    """
    return find_candidates(context.tpu, context.place.zone)


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or [])


def on_create_failed(context: RequestContext, problem: Problem, *, gone: bool = False) -> Answer:
    """Delete and try the next candidate if the problem concerns this one only; else fail the request.

    Args:
        context: the step.
        problem: why the creation failed.
        gone: nothing exists: the API has just confirmed it, or has rejected the only creation that was sent.
    """
    if problem.kind == "auth":  # of an operation: the API has accepted the login when it was sent
        return _repeat_with_login(context, problem)
    context = context.update(unauthenticated_since=0.0)
    if problem.kind in {"throttled", "busy"}:  # a limit per minute; preempted while it was created
        return retry(context, problem.message)
    lacking = problem.kind == "config" and _lacks_type(context, problem)
    if problem.kind not in NO_CAPACITY | REFUSED and not lacking:
        return deny(problem)
    saved = context.saved
    if problem.kind in REFUSED or lacking:
        saved = replace(saved, refusals=(*saved.refusals, (problem.kind, str(saved.candidate), problem.message)))
    context = context.with_saved(saved.begin_delete(_outcome(problem), "next"))
    return (
        next_candidate(context)
        if gone and not context.late_for
        else context.wait(f"{saved.candidate}: {problem.message}", 0)
    )


def _repeat_with_login(context: RequestContext, problem: Problem) -> Answer:
    """Request the candidate again until the login is renewed, or `auth_timeout` has passed."""
    saved, since = context.saved, context.now
    if saved.unauthenticated_since and context.now - saved.candidate_since <= SAME_EXPIRY:
        since = min(saved.unauthenticated_since, since)  # else the login was valid for long in between
    again = retry(context.update(unauthenticated_since=since), f"{problem.message} ({problem.hint})")
    return login.wait_until_renewed(context.request, problem, again, since)


def _lacks_type(context: RequestContext, problem: Problem) -> bool:
    """Return whether there are other candidates, and the API says that the current zone has not the accelerator.

    Raises:
        CloudError: the API did not answer; it may do so later.
    """
    saved = context.saved
    if len(candidates_of(context)) == 1:
        return False
    if lacks_type(problem.message):
        return True
    try:
        return saved.accelerator not in context.api.accelerator_types(saved.location)
    except CloudError as error:
        if error.problem.kind in RETRYABLE | {"auth"}:
            raise
        return False  # the refusal says more than that there is no list


def _outcome(problem: Problem) -> str:
    if problem.kind == "quota-used":
        return f"quota used up ({problem.message})"
    return "no capacity" if "capacity" in problem.message else problem.message


_REFUSALS: Mapping[ProblemKind, str] = {
    "quota": "the quota is 0 for",
    "forbidden": "access is denied to",
    "config": "there is no",
}


def no_such_tpu(context: RequestContext) -> Waiting:
    """Look in the next zone for the TPU that must exist (`tpu.existing`); the request fails if none has it."""
    saved, why = context.saved, f"no TPU there is called {context.name}, and tpu.existing is true"
    refusals = (*saved.refusals, ("config", str(saved.candidate), why))
    return next_candidate(context.with_saved(replace(saved.begin_delete("not found", "next"), refusals=refusals)))


def refuse(context: RequestContext, answer: Answer) -> Answer:
    """Return the answer after a creation that the API refused.

    If it fails the request and nothing else was sent, that comes in the next step: only `Waiting` has a state, which
    says that there is nothing to release.
    """
    if not isinstance(answer, Denied) or not context.nothing_sent:
        return answer
    failure = answer.failure
    context = context.update(phase="refused", refused=(failure.kind, failure.evidence, failure.hint))
    return context.wait_with_history(f"{context.saved.candidate}: {failure.evidence}", 0)


def deny_refused(context: RequestContext) -> Denied:
    """Fail a request that was refused, or whose candidates all were, with the API's message about each."""
    if context.saved.refused:
        kind, evidence, hint = context.saved.refused
        return Denied(Failure(cast("FailureKind", kind), evidence=evidence, hint=hint))
    kind, _, message = context.saved.refusals[0]
    evidence = "; ".join(f"{_REFUSALS[why]} {candidate}: {text}" for why, candidate, text in context.saved.refusals)
    return deny(Problem(kind, evidence, hint_for(kind, message, context.saved.project)))


def abandon(context: RequestContext, why: str) -> Waiting:
    """Delete what was created for the current candidate, then try the next one."""
    return context.with_saved(context.saved.begin_delete(why, "next")).wait(f"{context.saved.candidate}: {why}", 0)


def retry(context: RequestContext, why: str) -> Waiting:
    """Delete what was created for the current candidate, then request it again."""
    return context.with_saved(context.saved.begin_delete(why, "retry")).wait(f"{context.saved.candidate}: {why}", 0)


def replace_lost(context: RequestContext, resource: TpuResource) -> Answer:
    """Delete a lost TPU and request it again, unless tpux did not create it."""
    whose, delete = borrowing.owner(context, resource), f"tpux tpu delete {context.name} --zone {context.saved.zone}"
    if whose == "nobody" and context.has_own_name:  # nothing without an owner's labels is deleted
        return Denied(InvalidConfigError(f"{resource.state}, and has no labels of an owner", delete).failure)
    if whose == "stale" or not context.saved.borrowed or context.tpu.release == "always":
        return retry(context, resource.state)
    hint = f"{delete}, or set tpu.release: always"
    return Denied(InvalidConfigError(f"{resource.state}, and tpux did not create it", hint).failure)


def next_candidate(context: RequestContext) -> Waiting:
    """Go on after a deletion: request the next candidate or the same one, or back off first."""
    saved = context.saved
    if saved.after_delete == "retry":
        pause = 0.0 if saved.retries == 0 else BACKOFF.delay(saved.retries - 1)
        context = context.restart_candidate().update(retries=saved.retries + 1)
    elif saved.candidate_index + 1 < len(candidates_of(context)):
        index = saved.candidate_index + 1
        saved = saved.begin_candidate(index, candidates_of(context)[index], context.now)
        return context.with_saved(saved).wait_with_history(f"requesting {saved.candidate}", 0)
    elif len(saved.refusals) >= len(candidates_of(context)):
        # Denied in a step of its own: the saved state says that there is nothing to release.
        return context.update(phase="refused").wait_with_history("every zone and accelerator was refused", 0)
    else:
        pause = BACKOFF.delay(saved.rounds)
        saved = replace(saved, refusals=())
        saved = saved.begin_candidate(0, candidates_of(context)[0], context.now)
        context = context.with_saved(replace(saved, rounds=saved.rounds + 1))
    candidate = context.saved.candidate
    if not pause:
        return context.wait_with_history(f"requesting {candidate} again", 0)
    context = context.update(phase="backing-off", backoff_until=context.now + pause)
    return context.wait_with_history(f"requesting {candidate} again in {pause:.0f} s", pause)
