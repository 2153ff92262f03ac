"""Release a TPU: delete it and confirm that it is gone. What the job does not own is left alone."""

from __future__ import annotations

from dataclasses import replace

from tpux import ProvisionRequest, Released, Waiting
from tpux.api import machines
from tpux_gcp import borrowing, login
from tpux_gcp.errors import CloudError, InvalidConfigError, Problem
from tpux_gcp.existence import POLL, Absent, MayAppear, is_doubtful, look_up, poll_after
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import LOST, TpuResource

# Seconds.
STUCK_AFTER = 600.0
MAX_POLL = 30.0


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
    if context is None or (context.saved.phase in {"backing-off", "refused"} and not context.late_for):
        return Released()
    try:
        pending = None
        if not context.saved.borrowed or context.tpu.release == "always":
            pending = delete_and_confirm(context)
        left = pending or borrowing.release(context)
        return left if isinstance(left, Waiting) else Released(left or _left(context))
    except CloudError as error:
        return _release_pending(context, error.problem)


def _left(context: RequestContext) -> str:
    """Return that what has the name of the job's own TPU is left alone, as its labels name no owner any more."""
    borrowed = context.saved.borrowed and not context.has_own_name
    resource = None if borrowed or context.nothing_sent else context.get_resource()
    if resource is None or resource.status == "deleting" or borrowing.owner(context, resource) != "nobody":
        return ""
    zone = context.saved.zone
    delete = f"tpux tpu delete {context.name} --zone {zone} --project {context.saved.project}"
    return f"TPU {context.name} in {zone} has no labels of an owner and is left; if it is this job's, run `{delete}`"


def delete_and_confirm(context: RequestContext, *, again: bool = False) -> Waiting | None:
    """Delete what exists under the TPU's name and wait until it is gone.

    Args:
        context: the step.
        again: the same name is requested next, so that a creation which takes effect late does no harm.

    Returns:
        The answer to wait, or None once nothing exists that the job may delete.

    Raises:
        CloudError: the API failed; what exists is unknown.
    """
    context, found = look_up(context)
    login.accepted(context.request.directory)
    if isinstance(found, MayAppear):
        return replace(context.wait(found.why, found.poll_after), ends_within=found.ends_within)
    if isinstance(found, Absent):
        return None if again or not context.late_for else _await_late(context)
    resource = found.resource
    if context.saved.borrowed and is_doubtful(resource):
        return context.wait(resource.state, MAX_POLL)  # its claims are labels of a node
    if (use := _is_used(context, resource)) is not None:
        return use
    if not _may_delete(context, resource):
        return None
    context = context.leasing(resource) if context.saved.borrowed else context
    if context.saved.borrowed and (unclaimed := borrowing.hold_claim(context, resource)) is not None:
        return unclaimed
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


def _await_late(context: RequestContext) -> Waiting:
    """Return the answer to look again while a creation that was not answered, and was sent again, may take effect."""
    left, since = context.late_for, min(context.saved.unanswered_at, context.now)
    why = f"an earlier request for {context.name} was not answered, and may still take effect"
    pause = min(poll_after(context.now - since, MAX_POLL), left)
    return replace(context.update(unanswered_at=since).wait(why, pause), ends_within=left)


def _is_used(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Return the answer to wait while a job that has borrowed this job's TPU uses it.

    It was nobody's when this job had ended. Now that the job was resumed, it is not deleted under the other one.
    """
    if borrowing.owner(context, resource) not in {"ours", "former"} or resource.status in {*LOST, "deleting"}:
        return None
    return borrowing.wait_for_borrower(context, resource)


def _may_delete(context: RequestContext, resource: TpuResource) -> bool:
    """Return True if the job owns the TPU, or may delete it and holds the lease.

    It may delete a borrowed TPU under `release: always`, unless that is another job's by now or another store has
    claimed it, and a lost one that an ended job of this store left behind: that one only takes up quota and the name.
    """
    whose = borrowing.owner(context, resource)
    if whose in {"ours", "former"}:
        return True
    if context.tpu.existing and context.tpu.release != "always":
        return False  # none is requested under the name, so what is lost there is in nobody's way
    if not borrowing.may_be_deleted(context, resource):
        return False
    always = context.saved.borrowed and context.tpu.release == "always" and whose != "another"
    lost = whose == "stale" and resource.status in LOST
    if lost and borrowing.slices_around(context.api, context.saved.location, context.name, resource) > 1:
        return False  # it is deleted with the other slices, which are not lost
    return (always or lost) and not machines.acquire_all(
        context.lease_names(resource), context.request.labels, context.request.previous_owners
    )


def _release_pending(context: RequestContext, problem: Problem) -> Waiting:
    waiting = context.retry_later(problem)
    return replace(waiting, why=f"not released yet: {waiting.why}", hint=problem.hint)
