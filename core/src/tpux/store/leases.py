"""Leases: which job uses a machine that tpux did not create; and which jobs are active, for plugins.

A user may have a lease as well, without a job and with an end: a hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.store import files
from tpux.store.files import parse
from tpux.store.published import ACTIVE, File, Published, reached

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.store import Store

HOLD = "hold"
"""In place of a job's id, in the answers about a machine that a user holds (`hold`)."""
OWNER_LABELS = ("tpux-store", "tpux-user", "tpux-job")
"""The labels that name the owner of a machine (`ProvisionRequest.labels`)."""


def store_id() -> str:
    """Return the random id of this store, the value of the label `tpux-store`. Since 0.1.

    Raises:
        TpuxError: another process held the store's lock for long; or the store was moved or copied, and the user has
            not said which: a copy has the id of the original, but nothing to do with its machines.
    """
    from tpux.store import Store

    store = Store()
    store.require_in_place()
    return store.id


def is_active(job: str) -> bool:
    """Return whether a job of any user has not ended, or still holds machines. Since 0.1.

    A job that cannot be read counts as active, and so does one from which another job has taken over machines and holds
    them: they may still have its labels, as a queued resource keeps them.

    Args:
        job: the job's id.
    """
    from tpux.store import Store

    store = Store()
    for user in store.users():
        record = store.record(job, user)
        try:
            if record.directory.is_dir():
                state = record.refresh()
                return not state.done or state.requested or _is_label_of_another(store, job)
        except (OSError, TpuxError):
            return True
    return _is_label_of_another(store, job) or any(
        file.name == f"{ACTIVE}/{job}" or job in _previous(file) for file in active_of_others(store)
    )


def active_of_others(store: Store) -> list[File]:
    """Return what the other users of a shared store have published about their active jobs."""
    published = Published(store.home, store.shared)
    return [file for file in published.files(ACTIVE) if not file.own] if published.shared else []


def _previous(file: File) -> list[JsonValue]:
    """Return the jobs whose labels the machines of an active job may have, as its user says."""
    found = (parse(file.content) or {}).get("previous")
    return found if isinstance(found, list) else []


def _is_label_of_another(store: Store, job: str) -> bool:
    """Return whether another job holds machines that it has taken over, and that may have the labels of this one."""
    for user in store.users():
        for record in store.records(user):
            try:
                state = record.refresh()
            except (OSError, TpuxError):
                continue  # it would keep all leases of ended jobs
            if state.requested and any(labels.get("tpux-job") == job for labels in state.previous_owners):
                return True
    return False


def acquire(machine: str, labels: Mapping[str, str], previous_owners: Sequence[Mapping[str, str]] = ()) -> str:
    """Lease a machine that tpux did not create to a job, for as long as the job is active. Since 0.1.

    The lease is on disk and changed under a lock, so it outlives the supervisor. The lease of a job that is not active
    any more is void.

    Args:
        machine: the name of the machine; the same for everybody who could use it.
        labels: the job's labels (`ProvisionRequest.labels`).
        previous_owners: the labels of jobs whose leases pass to this one (`ProvisionRequest.previous_owners`).

    Returns:
        The id of the job that holds the lease instead; empty if this job holds it now.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the lease could not be written.
    """
    return acquire_all([machine], labels, previous_owners).get(machine, "")


def acquire_all(
    machines: Iterable[str], labels: Mapping[str, str], previous_owners: Sequence[Mapping[str, str]] = ()
) -> dict[str, str]:
    """Lease several machines to a job, all of them or none. Since 0.1.

    Jobs that need some of the same machines cannot block each other: none keeps a part while it waits for the rest.
    Leases that the job holds already remain, whatever the answer is.

    Args:
        machines: their names, as for `acquire`.
        labels: the job's labels (`ProvisionRequest.labels`).
        previous_owners: the labels of jobs whose leases pass to this one (`ProvisionRequest.previous_owners`).

    Returns:
        The machines that others hold, each with the job's id, or `HOLD`; empty if this job holds all of them now. A
        hold of the job's own user passes to it.

    Raises:
        TpuxError: another process held a lock for long.
        OSError: a lease could not be written. None of those that were missing is held.
    """
    mine = {label: labels[label] for label in OWNER_LABELS}
    passed_on = [{label: one[label] for label in OWNER_LABELS} for one in previous_owners]
    return _acquire(machines, mine, [*passed_on, {**mine, "tpux-job": HOLD}], {})


def hold(machines: Iterable[str], *, until: float, note: str = "") -> dict[str, str]:
    """Lease machines to the user, all of them or none; the lease is void from its end on. Since 0.1.

    Args:
        machines: their names, as for `acquire`.
        until: the end, in seconds since the epoch.
        note: why, for other users.

    Returns:
        As `acquire_all`. A hold that the user has already gets this end and this note.

    Raises:
        TpuxError: another process held a lock for long, or the store was moved or copied.
        OSError: a lease could not be written. None of those that were missing is held.
    """
    return _acquire(machines, _holding(), [], {"until": until, "note": note})


def end_hold(machines: Iterable[str]) -> bool:
    """End the user's hold of machines; return whether there was one. Since 0.1.

    Raises:
        TpuxError: another process held a lock for long, or the store was moved or copied.
        OSError: a lease could not be removed.
    """
    leases = _leases()
    held = [machine for machine in machines if _owner(leases, _last(leases, _name(machine))) == _holding()]
    for machine in held:
        release(machine, _holding())
    return bool(held)


def lease_of(machine: str) -> Mapping[str, JsonValue]:
    """Return the lease of a machine that counts: labels of the owner, `since`, and of a hold `until` and `note`.

    Returns:
        The lease; its `tpux-job` is `HOLD` if a user holds the machine. Empty if nobody has it. Since 0.1.
    """
    return _last(_leases(), _name(machine))


def _holding() -> dict[str, str]:
    from tpux.store import Store

    return {"tpux-store": store_id(), "tpux-user": Store().user, "tpux-job": HOLD}


def _acquire(
    machines: Iterable[str],
    mine: Mapping[str, str],
    passed_on: Sequence[Mapping[str, str]],
    details: Mapping[str, JsonValue],
) -> dict[str, str]:
    from tpux.store import locks

    leases, names = _leases(), {_name(machine): machine for machine in machines}
    # Sorted, so that two processes cannot each wait for a lock that the other one holds.
    held = dict(sorted((leases.lock(name), machine) for name, machine in names.items()))
    with ExitStack() as stack:
        for path, machine in held.items():
            stack.enter_context(locks.held(path, what=f"the lease of {machine}"))
        counts = cache(_counts)  # once a job: it may read all jobs
        owners = {name: _owner(leases, _last(leases, name, counts)) for name in names}
        # One's own is written again below a higher number, whose owner may become active again.
        missing = [
            name
            for name, owner in owners.items()
            if owner != mine or details or _number(_own(leases, name)) + 1 < _next(leases, name)
        ]
        others = {name: owners[name] for name in missing if owners[name] not in [mine, *passed_on]}
        holders = {name: owner.get("tpux-job", "") for name, owner in others.items()}
        if found := {names[name]: holder for name, holder in holders.items() if holder}:
            return found
        _write(
            leases, {name: _next(leases, name) for name in missing}, names, {"since": time.time(), **details, **mine}
        )
    return {}


def _counts(holder: str) -> bool:
    """Return whether the holder that a lease names has it still; a hold that has ended names nobody."""
    return holder == HOLD or (holder.isdecimal() and is_active(holder))


def _write(
    leases: Published, missing: Mapping[str, int], machines: Mapping[str, str], mine: Mapping[str, JsonValue]
) -> None:
    """Write the leases that are missing so that a crash at any point leaves all of them valid, or none.

    All but the last are written as pending on the last, which thereby makes them valid.

    Args:
        leases: where they are.
        missing: their names, with their numbers.
        machines: the machine of each of the names whose locks the caller holds.
        mine: the owner.
    """
    import secrets

    token, names = secrets.token_hex(8), [*missing]
    for name, number in missing.items():
        pending = {} if name == names[-1] else {"pending_on": machines[names[-1]]}
        lease = {**mine, "machine": machines[name], "number": number, "token": token, **pending}
        leases.write(name, files.dump(lease))
    for name in machines:  # also those that an earlier call, which died, has left pending
        lease = _own(leases, name)
        if "pending_on" in lease:
            kept = {key: value for key, value in lease.items() if key not in {"pending_on", "token"}}
            leases.write(name, files.dump({**kept, **mine}))


def release(machine: str, labels: Mapping[str, str]) -> None:
    """Release a lease, if this job holds it. Since 0.1.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the lease could not be removed.
    """
    from tpux.store import locks

    leases, name = _leases(), _name(machine)
    with locks.held(leases.lock(name), what=f"the lease of {machine}"):
        if _owner(leases, _own(leases, name)) == {label: labels[label] for label in OWNER_LABELS}:
            leases.remove(name)


def holder_of(machine: str) -> str:
    """Return the id of the active job that leases a machine, `HOLD` if a user does; empty if nobody. Since 0.1."""
    return str(lease_of(machine).get("tpux-job", ""))


def _leases() -> Published:
    from tpux.store import Store

    store = Store()
    return Published(store.home, store.shared)


def _last(leases: Published, name: str, counts: Callable[[str], bool] = _counts) -> dict[str, JsonValue]:
    """Return the lease of a machine that was written last, of those whose owner has it still; {} if there is none.

    Each user of a shared store has a file for it, and of those that count the highest number is that of the last one: a
    user must not end what another one has by writing a lease that does not count itself.
    """
    found = [(_number(lease), file.own, lease) for file in leases.read(name) if (lease := _parse(file))]
    ordered = sorted(found, key=lambda one: one[:2], reverse=True)
    return next((lease for *_, lease in ordered if counts(_owner(leases, lease).get("tpux-job", ""))), {})


def _next(leases: Published, name: str) -> int:
    """Return the number of a new lease, above those that do not count as well: an ended job may be resumed.

    Raises:
        TpuxError: a user has published one that nobody can have reached.
    """
    return 1 + max((reached(file, _number(_parse(file)), "lease") for file in leases.read(name)), default=0)


def _own(leases: Published, name: str) -> dict[str, JsonValue]:
    """Return this user's lease of a machine, whether it counts or not."""
    return next((_parse(file) for file in leases.read(name) if file.own), {})


def _parse(file: File) -> dict[str, JsonValue]:
    """Return the lease in a file. It is that of the user whose file it is, whatever it says."""
    lease = parse(file.content) or {}
    return lease if file.own or "tpux-job" not in lease else {**lease, "tpux-user": file.user}


def _number(lease: Mapping[str, JsonValue]) -> int:
    return number if isinstance(number := lease.get("number"), int) else 0


def _owner(leases: Published, lease: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the owner's labels that a lease has; empty if there is no lease, or one of a call that died."""
    if other := lease.get("pending_on"):
        same = [
            one for file in leases.read(_name(str(other))) if (one := _parse(file)).get("token") == lease.get("token")
        ]
        if not any(one.get("tpux-user") == lease.get("tpux-user") for one in same):
            return {}
    if isinstance(until := lease.get("until"), (int, float)) and until <= time.time():
        return {}
    return {label: str(lease[label]) for label in OWNER_LABELS if label in lease}


def _name(machine: str) -> str:
    """Return the name of the file of a machine's lease."""
    import hashlib
    import re

    readable = re.sub("[^a-z0-9-]+", "-", machine.lower())[-80:]
    digest = hashlib.sha256(machine.encode()).hexdigest()[:8]
    return f"machines/{readable}-{digest}.json"
