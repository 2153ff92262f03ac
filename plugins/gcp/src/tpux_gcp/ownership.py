"""Whether a job may use an existing TPU: it created it, took it over, or borrows it because the config names it."""

from __future__ import annotations

from tpux import Waiting, acquire_lease
from tpux_gcp.errors import InvalidConfigError, Problem, from_status
from tpux_gcp.labels import JOB, STORE, USER, owner, owner_labels
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import TpuResource
from tpux_gcp.spec import check_existing

LEASE_POLL = 5.0
"""Seconds until the next attempt to borrow a TPU that another job has borrowed."""


def take_ownership(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Make sure that the job may use an existing TPU: it created it or took it over, or borrows it under a lease.

    Returns:
        The answer to wait while its labels change, borrowing begins, or another job has borrowed it; None once the job
        may use it.

    Raises:
        InvalidConfigError: it belongs to another job, or is not what the config asks for.
    """
    request, saved = context.request, context.saved
    whose = owner(resource.labels, request)
    if whose == "ours":
        return None
    if whose == "former":
        return _change_labels(context, resource)
    if whose == "another":
        job, user, store = (resource.labels.get(key, "?") for key in (JOB, USER, STORE))
        if store == request.labels[STORE]:
            taken_over = f"`tpux run CONFIG --on {job}` takes it over once that job has ended"
            where, hint = "", f"{taken_over}, `tpux delete {job}` releases it, or choose another tpu.name"
        else:
            where, hint = f" in another store ({store})", "choose another tpu.name"
        raise InvalidConfigError(f"TPU {context.name} in {saved.zone} belongs to job {job} of {user}{where}", hint)
    check_existing(context.tpu, context.name, context.candidates, saved.zone, resource)
    if not saved.borrowed:  # saved before the lease is acquired, so that a release knows about it
        borrowing = context.update(borrowed=True, accelerator=resource.accelerator or saved.accelerator)
        return borrowing.wait(f"borrowing {context.name}, which this job did not create", 0)
    if holder := acquire_lease(context.lease_name, request.labels, request.former):
        freed = f"`tpux stop {int(holder)} --release` frees it"
        return context.wait(f"TPU {context.name} in {saved.zone} is in use by job {int(holder)}; {freed}", LEASE_POLL)
    return None


def _change_labels(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Give the nodes of a TPU that was taken over the labels of this job, the first node last: its labels count.

    A queued resource keeps the labels that it was created with; they count only while it has no nodes.

    Returns:
        The answer to wait for an update; None if there is nothing to update.

    Raises:
        CloudError: a call of the API failed.
    """
    if resource.status != "ready":
        return None  # it is replaced, or waited for
    saved, ours = context.saved, owner_labels(context.request.labels)
    if saved.metadata_operation and (operation := context.api.operation(saved.metadata_operation)) is not None:
        if not operation.done:
            return context.wait(f"taking over {context.name}", 1)
        if operation.code:
            problem = from_status(operation.code, operation.message, saved.project)
            return context.update(metadata_operation="").retry_later(Problem("transient", problem.message))
    for node in reversed(resource.nodes):
        if not ours.items() <= node.labels.items():
            name = context.api.update_node(saved.location, node.name, "labels", {**node.labels, **ours})
            return context.update(metadata_operation=name).wait(f"taking over {node.name}: changing its labels", 1)
    return None
