"""Whether a job's TPU exists, and its release: delete it and confirm that it is gone.

What the job does not own is left alone. A creation may have succeeded although no response came, and the API may show a
new TPU late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tpux import ProvisionRequest, Released, Waiting
from tpux.helpers import acquire_lease, release_lease
from tpux_gcp.errors import CloudError, InvalidConfigError, Problem, from_status
from tpux_gcp.labels import owner
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import LOST, TpuResource

# Seconds. A created TPU may stay invisible this long before it counts as lost.
INVISIBLE_FOR = 120.0
# A creation that was not answered may take effect this long after it was sent. Until then it is looked for.
UNANSWERED_FOR = 900.0
STUCK_AFTER = 600.0
POLL, MAX_POLL = 1.0, 30.0
MAX_CREATION_POLL = 15.0


@dataclass(frozen=True)
class Exists:
    """What exists under the TPU's name."""

    resource: TpuResource


@dataclass(frozen=True)
class MayAppear:
    """Nothing exists, and a creation that was sent may still take effect.

    Attributes:
        why: what is known of the creation, as shown to the user.
        poll_after: seconds until the next look.
        ends_within: seconds after which it cannot take effect any more; None while its operation is running.
    """

    why: str
    poll_after: float
    ends_within: float | None = None


@dataclass(frozen=True)
class Absent:
    """Nothing exists, and no creation that was sent can take effect any more.

    Attributes:
        failure: why the creation failed, None if it did not or is not known.
    """

    failure: Problem | None = None


def look_up(context: RequestContext) -> tuple[RequestContext, Exists | MayAppear | Absent]:
    """Find out whether the TPU exists; all that depends on the answer asks here.

    The resource is asked for, then the operation of its creation. The TPU may appear between these two calls, so when
    the operation has ended the resource is asked for again before `Absent` is answered. Only a TPU that was seen, and
    does not exist any more, cannot appear.

    Returns:
        The context with what is known of the creation, and the answer.

    Raises:
        CloudError: a call failed; what exists is unknown.
    """
    if (resource := context.get_resource()) is not None:
        return context, Exists(resource)
    if not context.was_sent:
        return context, Absent()
    context, pending = _follow_creation(context)
    if isinstance(pending, MayAppear) or context.saved.observed_state:
        return context, pending
    resource = context.get_resource()
    return context, pending if resource is None else Exists(resource)


def _follow_creation(context: RequestContext) -> tuple[RequestContext, MayAppear | Absent]:
    """Return whether the creation of a TPU that does not exist may still take effect."""
    api, now, name = context.api, context.now, f"{context.name} in {context.saved.zone}"
    context = context.update(errors=0, sent_at=min(context.saved.sent_at, now))  # the clock was set back
    if not context.saved.operation:  # it was not answered; the API may list it
        target = context.saved.location.queued_resource if context.queue else context.saved.location.node
        context = context.update(operation=api.running_creation(context.saved.location, target(context.name)))
    saved, failure = context.saved, None
    if saved.operation and (operation := api.operation(saved.operation)) is not None:
        if not operation.done:
            return context, MayAppear(f"{name}: creation in progress", poll_after(context.observed_for))
        if operation.code:
            failure = from_status(operation.code, operation.message, saved.project)
    if failure is not None or saved.observed_state:
        return context, Absent(failure)
    if saved.operation:  # it has succeeded, or the API has forgotten it
        context = context.update(absent_since=min(saved.absent_since or now, now))
        since, limit, what = context.saved.absent_since, INVISIBLE_FOR, "has ended, and it is not visible yet"
    else:
        since, limit, what = saved.sent_at, UNANSWERED_FOR, "was not answered, and may still take effect"
    if (left := since + limit - now) <= 0:
        return context, Absent()
    return context, MayAppear(f"the creation of {name} {what}", min(poll_after(now - since), left), left)


def poll_after(waited: float, longest: float = MAX_CREATION_POLL) -> float:
    """Return the seconds until the next poll: soon after a change, less often the longer nothing changes."""
    return min(longest, max(POLL, waited / 4))


def release(request: ProvisionRequest, *, queue: bool) -> Released | Waiting:
    """Take one step of releasing the machines; `Released` only once the API has confirmed that nothing is left."""
    if not request.saved_state:
        return Released()
    # Flags set nothing that a release needs and that is not in the saved state.
    request = replace(request, tpu=request.tpu.model_copy(update={"flags": []}))
    try:
        return _release(RequestContext.load(request, queue=queue))
    except InvalidConfigError as error:
        hint = f" ({error.failure.hint})" if error.failure.hint else ""
        return Waiting(f"not released: {error}{hint}", MAX_POLL)


def _release(context: RequestContext | None) -> Released | Waiting:
    # Nothing exists: the last candidate was refused or confirmed deleted, the next is not requested yet.
    if context is None or context.saved.phase in {"backing-off", "refused"}:
        return Released()
    try:
        pending = None
        if not context.saved.borrowed or context.tpu.release == "always":
            pending = delete_and_confirm(context)
    except CloudError as error:
        return _release_pending(context, error.problem)
    if pending is None and context.saved.borrowed:
        release_lease(context.lease_name, context.request.labels)
    return pending or Released()


def delete_and_confirm(context: RequestContext) -> Waiting | None:
    """Delete what exists under the TPU's name and wait until it is gone.

    Returns:
        The answer to wait, or None once nothing exists that the job may delete.

    Raises:
        CloudError: the API failed; what exists is unknown.
    """
    context, found = look_up(context)
    if isinstance(found, MayAppear):
        return replace(context.wait(found.why, found.poll_after), ends_within=found.ends_within)
    if isinstance(found, Absent):
        return None
    resource = found.resource
    if not _may_delete(context, resource):
        return None
    deleting = resource.status == "deleting"
    # A state of its own, so that polls become rarer from the deletion on, not from when the TPU became READY.
    context = context.observed(resource.state if deleting else f"to be deleted: {resource.state}")
    waited = context.observed_for
    if not deleting:
        context.api.delete(context.saved.location, resource)
        # The API may ignore a deletion in some states, so it is repeated, less and less often.
        return context.wait(f"deleting {context.name}: {resource.state}", min(MAX_POLL, max(POLL, waited)))
    stuck = " for more than ten minutes; only the cloud can finish this" if waited > STUCK_AFTER else ""
    return context.wait(resource.state + stuck, poll_after(waited, MAX_POLL))


def _may_delete(context: RequestContext, resource: TpuResource) -> bool:
    """Return True if the job owns the TPU, or may delete it and holds the lease.

    It may delete a borrowed TPU under `release: always`, unless that is another job's by now, and a lost one that an
    ended job of this store left behind: that one only takes up quota and the name.
    """
    whose = owner(resource.labels, context.request)
    if whose in {"ours", "former"}:
        return True
    always = context.saved.borrowed and context.tpu.release == "always" and whose != "another"
    lost = whose == "stale" and resource.status in LOST
    return (always or lost) and not acquire_lease(context.lease_name, context.request.labels, context.request.former)


def _release_pending(context: RequestContext, problem: Problem) -> Waiting:
    waiting = context.retry_later(problem)
    hint = f" ({problem.hint})" if problem.hint else ""
    return Waiting(f"not released yet: {waiting.why}{hint}", waiting.poll_after, waiting.saved_state)
