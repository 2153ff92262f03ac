"""Leases: which job uses a machine that tpux did not create; and which jobs are active, for plugins.

A user may have a lease as well, without a job and with an end: a hold.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.errors import TpuxError

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
    return _is_label_of_another(store, job)


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
    held = [machine for machine in machines if _owner(_path(machine)) == _holding()]
    for machine in held:
        release(machine, _holding())
    return bool(held)


def lease_of(machine: str) -> Mapping[str, JsonValue]:
    """Return the lease of a machine that counts: labels of the owner, `since`, and of a hold `until` and `note`.

    Returns:
        The lease; its `tpux-job` is `HOLD` if a user holds the machine. Empty if nobody has it. Since 0.1.
    """
    from tpux.store import files

    return files.load(_path(machine)) or {} if holder_of(machine) else {}


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

    # Sorted, so that two processes cannot each wait for a lock that the other one holds.
    paths = dict(sorted((_path(machine), machine) for machine in machines))
    with ExitStack() as stack:
        for path, machine in paths.items():
            stack.enter_context(locks.held(path.with_suffix(".lock"), what=f"the lease of {machine}"))
        owners = {path: _owner(path) for path in paths}
        missing = [path for path, owner in owners.items() if owner != mine or details]
        others = {path: owners[path] for path in missing if owners[path] not in [mine, *passed_on]}
        holders = {path: owner.get("tpux-job", "") for path, owner in others.items()}
        active = {job for job in {*holders.values()} if _counts(job)}  # once a job: it may read all jobs
        if found := {paths[path]: holder for path, holder in holders.items() if holder in active}:
            return found
        _write(missing, paths, {**mine, "since": time.time(), **details})
    return {}


def _counts(holder: str) -> bool:
    """Return whether the holder that a lease names has it still; a hold that has ended names nobody."""
    return holder == HOLD or (holder != "" and is_active(holder))


def _write(missing: list[Path], machines: Mapping[Path, str], mine: Mapping[str, JsonValue]) -> None:
    """Write the leases that are missing so that a crash at any point leaves all of them valid, or none.

    All but the last are written as pending on the last, which thereby makes them valid.

    Args:
        missing: their files.
        machines: the machine of each of the files whose locks the caller holds.
        mine: the owner.
    """
    import secrets

    from tpux.store import files

    token = secrets.token_hex(8)
    for path in missing:
        pending = {} if path == missing[-1] else {"pending_on": machines[missing[-1]]}
        files.write_atomic(path, files.dump({**mine, "machine": machines[path], "token": token, **pending}))
    for path, machine in machines.items():  # also those that an earlier call, which died, has left pending
        if "pending_on" in (files.load(path) or {}):
            files.write_atomic(path, files.dump({**mine, "machine": machine}))


def release(machine: str, labels: Mapping[str, str]) -> None:
    """Release a lease, if this job holds it. Since 0.1.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the lease could not be removed.
    """
    from tpux.store import locks

    path = _path(machine)
    with locks.held(path.with_suffix(".lock"), what=f"the lease of {machine}"):
        if _owner(path) == {label: labels[label] for label in OWNER_LABELS}:
            path.unlink()


def holder_of(machine: str) -> str:
    """Return the id of the active job that leases a machine, `HOLD` if a user does; empty if nobody. Since 0.1."""
    holder = _owner(_path(machine)).get("tpux-job", "")
    return holder if _counts(holder) else ""


def _owner(path: Path) -> dict[str, str]:
    """Return the owner's labels that a lease has; empty if there is no lease, or one of a call that died."""
    from tpux.store import files

    lease = files.load(path) or {}
    if other := lease.get("pending_on"):
        last = files.load(_path(str(other))) or {}
        if last.get("token") != lease.get("token"):
            return {}
    if isinstance(until := lease.get("until"), (int, float)) and until <= time.time():
        return {}
    return {label: str(lease[label]) for label in OWNER_LABELS if label in lease}


def _path(machine: str) -> Path:
    import hashlib
    import re

    from tpux.store import Store

    readable = re.sub("[^a-z0-9-]+", "-", machine.lower())[-80:]
    digest = hashlib.sha256(machine.encode()).hexdigest()[:8]
    return Store().shared / "machines" / f"{readable}-{digest}.json"
