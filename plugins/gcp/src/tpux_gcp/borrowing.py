"""Borrow a TPU that the job did not create: under a lease in its own store, and a claim that other stores see."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tpux import HostUnreachableError, Job, JsonValue, TpuxError, Waiting
from tpux.api import machines
from tpux_gcp import labels
from tpux_gcp.api import Api
from tpux_gcp.claims import (
    LOST_AFTER,
    SETTLE,
    VALID_FOR,
    Claim,
    Note,
    claim_key,
    claim_of_another,
    claims_in,
    next_step,
    renewed,
    settled_in,
    whose,
    without,
)
from tpux_gcp.credentials import Place
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.existence import Exists, is_doubtful, look_up
from tpux_gcp.labels import JOB, STORE, USER, label_value
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import LOST, Location, TpuResource

# Seconds.
POLL = 1.0
BUSY_POLL = 30.0
# Until the next attempt to borrow a TPU that another job has borrowed.
LEASE_POLL = 5.0
LAST_TIME = 253402300800
"""Seconds since the epoch: the year 10000."""
UNCLAIMED_POLL = SETTLE / 3
RETRY_AFTER = (10.0, 40.0)
CHECKED_FOR = 10.0
"""For how long an answer counts for the start of the program on the other workers."""
MAY_NOT_UPDATE = "grant tpu.nodes.update (roles/tpu.admin): the claim of a TPU that tpux did not create is a label"

_log = logging.getLogger(__name__)
_NOTHING = TpuResource("failed", "", {})
_checked: dict[tuple[str, str], float] = {}
_lock = threading.Lock()


# --- within the store -----------------------------------------------------------------------------


def owner(context: RequestContext, resource: TpuResource) -> labels.Owner:
    """Return whose a TPU is; `stale` also if it was, and its job was resumed after this one had borrowed it."""
    found = labels.owner(resource.labels, context.request)
    if found != "another" or not context.saved.claim.held or not context.saved.borrowed:
        return found
    same_store = resource.labels.get(STORE) == label_value(context.request.labels[STORE])
    holders = {machines.holder_of(name) for name in context.lease_names(resource)} - {""}
    return "stale" if same_store and holders == {context.request.labels[JOB]} else found


def borrower(context: RequestContext, resource: TpuResource) -> str:
    """Return the other job of this store that has borrowed the TPU, empty if there is none.

    A job that is resumed may find its own TPU borrowed: it was nobody's in the meantime.
    """
    known = {one[JOB] for one in (context.request.labels, *context.request.previous_owners)}
    leases = map(machines.lease_of, context.lease_names(resource))
    held = (lease for lease in leases if lease and not _passes(context, lease))
    return next((holder for lease in held if (holder := str(lease[JOB])) not in known), "")


def _passes(context: RequestContext, lease: Mapping[str, JsonValue]) -> bool:
    """Return whether a lease is a hold of the job's own user."""
    return lease[JOB] == machines.HOLD and lease[USER] == context.request.labels[USER]


def wait_for(context: RequestContext, job: str, lease: Mapping[str, JsonValue]) -> Waiting:
    """Return the answer to wait for another job of this store, or for the end of a hold.

    A lease is never taken over because its user's supervisor is gone: programs outlive it, and may still run there.
    So the answer says who can end it, and how.
    """
    tpu, user = f"TPU {context.name} in {context.saved.zone}", str(lease.get(USER, ""))
    if job == machines.HOLD:
        until = lease.get("until")
        end = f" until {_time(int(until))}" if isinstance(until, (int, float)) and 0 < until < LAST_TIME else ""
        freed = f"it ends by itself, or {user or 'that user'} types `tpux release {context.name}`"
        return context.wait(f"{tpu} is held by {user or 'another user'}{end}; {freed}", LEASE_POLL)
    stop = f"`tpux stop {int(job)} --release`"
    if user in {"", context.request.labels[USER]}:
        return context.wait(f"{tpu} is in use by job {int(job)}; {stop} frees it", LEASE_POLL)
    why = (
        f"{tpu} is in use by job {int(job)} of {user}, also while no supervisor of {user} runs; {user} can type {stop}"
    )
    return context.wait(why, LEASE_POLL)


def _lease_of(context: RequestContext, resource: TpuResource, job: str) -> Mapping[str, JsonValue]:
    """Return the lease of the TPU that a job, or a user, has; {} if it was released just now."""
    leases = map(machines.lease_of, context.lease_names(resource))
    return next((lease for lease in leases if lease.get(JOB) == job), {})


def wait_for_borrower(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Return the answer to wait for the job of this store that has borrowed the TPU, None if there is none.

    Leases that cannot be read are waited for only if there is a claim, which every job that borrows a TPU that is ready
    writes before it uses it: what another user of the store keeps from others, or has broken, must not be in the way of
    a job's own TPU.
    """
    try:
        holder = borrower(context, resource)
        return wait_for(context, holder, _lease_of(context, resource, holder)) if holder else None
    except (OSError, TpuxError) as error:
        return _wait_for_leases(context, error) if claims_in(resource.labels) else None


def _wait_for_leases(context: RequestContext, error: Exception) -> Waiting:
    """Return the answer to wait until it is known who uses the TPU: an exception would soon end the job."""
    return context.wait(f"who uses TPU {context.name} is not known: {error}", LEASE_POLL)


def acquire(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Acquire the lease and the claim of a TPU.

    Returns:
        The answer to wait, None once both are held. The claim of a TPU that is not ready cannot be written: nobody
        can use it, so none is needed, but the one of another store is respected.

    Raises:
        CloudError: a call of the API failed.
    """
    request, noted = context.request, context.leasing(resource)
    if noted.saved.leased != context.saved.leased:  # saved before, so that a release knows about it
        return noted.wait(f"borrowing {context.name} under all its names", 0)
    try:
        holders = machines.acquire_all(context.lease_names(resource), request.labels, request.previous_owners)
        if holder := next(iter(holders.values()), ""):
            return wait_for(context, holder, _lease_of(context, resource, holder))
    except (OSError, TpuxError) as error:
        return _wait_for_leases(context, error)
    return hold_claim(context, resource)


# --- between stores -------------------------------------------------------------------------------


def hold_claim(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Take one step towards holding the claim of a TPU whose lease the job holds; arguments and answers as above."""
    found, note = resource.labels, context.saved.claim
    fresh = _fresh(context)
    if resource.status != "ready":
        return wait_for_claim(context, resource)
    step, noted = next_step(found, fresh, note, context.now)
    if step == "held":
        # Held in a step of its own: what follows in this one may be cut off before it is saved.
        return None if noted == note else context.update(claim=noted).wait(f"borrowed {context.name}", 0)
    if step == "another":
        return _yield(context, resource, noted)
    context = context.update(claim=noted)
    if step == "intend":
        # It follows a refusal as well, which it does not undo: of the same refusal again and again, one is final.
        context = context.update(errors=context.errors_before)
        return context.wait(f"claiming {context.name}, which this job did not create", 0)
    if step == "write":
        _write(context, resource, {**without(found, fresh.store), fresh.key: noted.value})
    left = noted.retry_at - context.now if not noted.value else settled_in(noted, context.now)
    pause = max(POLL, left) if noted.seen_at or not noted.value else POLL
    return context.wait(f"claiming {context.name}: waiting whether another store claims it too", pause)


def _yield(context: RequestContext, resource: TpuResource, noted: Note) -> Waiting:
    """Leave the TPU to another store whose claim is there, and try again after a random delay."""
    store = context.request.labels[STORE]
    other = next(claim for claim in claims_in(resource.labels).values() if claim.key != claim_key(store))
    if claim_key(store) in resource.labels:
        _write(context, resource, without(resource.labels, store))
    pause = random.uniform(*RETRY_AFTER) if context.saved.claim.value else BUSY_POLL  # noqa: S311 - no secret
    return _wait_for_store(context.update(claim=replace(noted, retry_at=context.now + pause)), other, pause)


def _wait_for_store(context: RequestContext, other: Claim, pause: float = BUSY_POLL) -> Waiting:
    return context.wait(describe(other, context.name, context.saved.zone, context.now / machines.clock_rate()), pause)


def wait_for_claim(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Return the answer to wait for another store whose claim stands, None if there is none, or the TPU is lost."""
    other = claim_of_another(resource.labels, context.request.labels[STORE])
    return None if other is None or resource.status in LOST else _wait_for_store(context, other)


def describe(claim: Claim, name: str, zone: str, now: float) -> str:
    """Return who has claimed a TPU since when, and what a person can do if its user does not need it any more."""
    who = f"job {claim.job.lstrip('0')} of {claim.user} in another store ({claim.store})"
    said = f"TPU {name} in {zone} is in use by {who if claim.job else f'another store ({claim.store})'}"
    if not claim.since:
        said += ", whose claim cannot be read"
    elif claim.until < now:
        said += f" since {_time(claim.since)}; its claim was not renewed and expired at {_time(claim.until)}"
    else:
        said += f" since {_time(claim.since)}"
    return f"{said}; if no program of it runs there, `{_removal(name, zone, claim.key)}` removes the claim"


def _removal(name: str, zone: str, key: str) -> str:
    return f"gcloud compute tpus tpu-vm update {name} --zone={zone} --remove-labels={key}"


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def release(context: RequestContext) -> Waiting | str:
    """Remove the claim of a TPU that is kept, then release its lease.

    Returns:
        The answer to wait until the claim is gone; then what is left of it, "" if nothing is.

    Raises:
        CloudError: a call of the API failed.
    """
    if not context.saved.borrowed:
        _release_leases(context, context.saved.leased)
        return ""
    context, found = look_up(context)
    resource = found.resource if isinstance(found, Exists) else None
    if resource is not None and is_doubtful(resource):
        return context.wait(resource.state, BUSY_POLL)
    resource = resource or _NOTHING
    there = resource.status not in {*LOST, "deleting"}
    # If another job of the store has borrowed it, the claim is that one's.
    left = _remove_claim(context, resource) if there and not borrower(context, resource) else ""
    if isinstance(left, Waiting):
        return left
    _release_leases(context, context.leasing(resource).saved.leased)
    return left


def _release_leases(context: RequestContext, names: Iterable[str]) -> None:
    """Release the leases of this job, and those that pass to it and that it has not acquired yet."""
    for name in names:
        for of_job in (context.request.labels, *context.request.previous_owners):
            machines.release(name, of_job)


def _remove_claim(context: RequestContext, resource: TpuResource) -> Waiting | str:
    """Take one step towards removing the store's claim; "" once it is gone, else that it cannot be removed."""
    store, note = context.request.labels[STORE], context.saved.claim
    if claim_key(store) not in resource.labels:
        if note.value and not note.seen_at and 0 <= context.now - note.begun_at < LOST_AFTER:
            return context.wait(f"a claim of {context.name} was written, and may still take effect", POLL)
        return ""
    why = f"removing the claim of {context.name}"
    if not note.value and 0 < note.retry_at - context.now <= LOST_AFTER:
        return context.wait(why, POLL)  # a second update could take effect when another job has claimed it
    try:
        _write(context, resource, without(resource.labels, store))
    except (CloudError, InvalidConfigError) as error:
        passing = {"auth", "transient", "throttled", *([] if resource.status == "stopped" else ["busy"])}
        if isinstance(error, CloudError) and error.problem.kind in passing:
            raise
        _log.warning("the claim of %s remains: %s", context.name, error)
        remove = _removal(resource.nodes[0].name, context.saved.zone, claim_key(store))
        return f"the claim of TPU {context.name} in {context.saved.zone} remains ({error}); `{remove}` removes it"
    return context.update(claim=Note(retry_at=context.now + LOST_AFTER)).wait(why, POLL)


def look_after(context: RequestContext, resource: TpuResource) -> tuple[str, float | None]:
    """Renew the claim of a TPU that the job uses. It is written anew if it was removed, by hand or by a late call.

    Returns:
        Why the job cannot use it any more, "" if it can; and the seconds until the next look, None for the usual ones.
        It is soon while there is no claim: another store that writes its own must not hold it before.
    """
    fresh, found = _fresh(context), resource.labels
    if (other := claim_of_another(found, fresh.store)) is not None:
        return describe(other, context.name, context.saved.zone, context.now / machines.clock_rate()), None
    if resource.status == "ready" and (claim := renewed(found, fresh)) is not None:
        try:
            _write(context, resource, {**without(found, fresh.store), claim.key: claim.value})
        except (CloudError, InvalidConfigError) as error:
            _log.warning("the claim of %s was not renewed: %s", context.name, error)
    return "", None if fresh.key in found or resource.status != "ready" else UNCLAIMED_POLL


def may_be_deleted(context: RequestContext, resource: TpuResource) -> bool:
    """Return True if no other store claims a TPU. An expired claim counts too."""
    ours = claim_key(context.request.labels[STORE])
    return all(claim.key == ours for claim in claims_in(resource.labels).values())


def check_before_start(job: Job) -> None:
    """Ask for the claim of a borrowed TPU once more, before the program starts on a worker.

    Raises:
        HostUnreachableError: it is not the job's now, or that is not known. Core tries again, and asks `inspect`.
    """
    held = machines.allocation_of(job)
    if held is None or not held.borrowed or job.tpu.allocation_mode not in job.resolved:
        return
    key = job.store_id, held.name
    with _lock:
        if 0 <= time.monotonic() - _checked.get(key, float("-inf")) < CHECKED_FOR:
            return
        place = Place.from_json(job.resolved[job.tpu.allocation_mode])
        try:
            api = Api(place)
            resource = api.tpu(Location(api.project, held.zone), held.name, queue=True)
        except (CloudError, InvalidConfigError) as error:
            raise HostUnreachableError(f"the claim of {held.name} is not known: {error}") from error
        found = resource.labels if resource else {}
        if whose(found, job.store_id) != "ours":
            raise HostUnreachableError(f"the claim of {held.name} is not this job's now")
        since = claims_in(found)[label_value(job.store_id)].since
        if 0 <= time.time() - since < SETTLE / machines.clock_rate():
            raise HostUnreachableError(f"the claim of {held.name} was removed, and is written anew")
        _checked[key] = time.monotonic()


def check_whole(api: Api, location: Location, name: str, resource: TpuResource) -> None:
    """Check that a name is not that of one slice of several: they are claimed, and deleted, together.

    Raises:
        InvalidConfigError: it is.
        CloudError: a call of the API failed.
    """
    if (count := slices_around(api, location, name, resource)) > 1:
        whole = resource.queued_resource
        raise InvalidConfigError(
            f"TPU {name} in {location.zone} is one of the {count} slices of the queued resource {whole}",
            f"set tpu.name: {whole} and tpu.node_count: {count} to use all of them, or choose another tpu.name",
        )


def slices_around(api: Api, location: Location, name: str, resource: TpuResource) -> int:
    """Return the number of slices of the queued resource to which a single node belongs, 1 for another TPU.

    Raises:
        CloudError: a call of the API failed.
    """
    if not resource.queued_resource or len(resource.nodes) != 1:
        return 1
    queued = api.queued_resource(location, resource.queued_resource)
    return max(1, len(queued.node_ids)) if queued and name in queued.node_ids else 1


def check_may_claim(api: Api, location: Location, resource: TpuResource) -> None:
    """Check that the account may write labels, by a call that changes nothing: no node's name can be updated.

    Raises:
        InvalidConfigError: it may not.
        CloudError: the call failed otherwise.
    """
    if resource.nodes and not api.may_update_node(location, resource.nodes[0].name):
        raise _may_not_update(resource.nodes[0].name, location.zone)


def _may_not_update(name: str, zone: str) -> InvalidConfigError:
    return InvalidConfigError(f"the account may not change the labels of TPU {name} in {zone}", MAY_NOT_UPDATE)


def _fresh(context: RequestContext) -> Claim:
    of_job, now = context.request.labels, int(context.now / machines.clock_rate())
    store = label_value(of_job[STORE])
    return Claim(store, now + VALID_FOR, now, label_value(of_job[JOB]), label_value(of_job.get(USER, "")))


def _write(context: RequestContext, resource: TpuResource, values: Mapping[str, str]) -> None:
    """Replace the labels of the first node, which are the resource's.

    Raises:
        InvalidConfigError: the account may not.
        CloudError: the call failed otherwise; it may have taken effect.
    """
    name = resource.nodes[0].name
    try:
        context.api.update_node(context.saved.location, name, "labels", values)
    except CloudError as error:
        if error.problem.kind == "forbidden":
            raise _may_not_update(name, context.saved.zone) from error
        raise
