"""Leases: which job uses a machine that tpux did not create; and which jobs are active, for plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpux.errors import TpuxError

OWNER_LABELS = ("tpux-store", "tpux-user", "tpux-job")
"""The labels that name the owner of a machine (`ProvisionRequest.labels`)."""


def store_id() -> str:
    """Return the random id of this store, the value of the label `tpux-store`.

    Raises:
        TpuxError: another process held the store's lock for long.
    """
    from tpux.store import Store

    return Store().id


def is_active(job: str) -> bool:
    """Return whether a job of any user has not ended, or still holds machines.

    A job that cannot be read counts as active.

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
                return not state.done or state.requested
        except (OSError, TpuxError):
            return True
    return False


def acquire_lease(machine: str, labels: Mapping[str, str]) -> str:
    """Lease a machine that tpux did not create to a job, for as long as the job is active.

    The lease is on disk and changed under a lock, so it outlives the supervisor. The lease of a job that is not active
    any more is void.

    Args:
        machine: the name of the machine; the same for everybody who could use it.
        labels: the job's labels (`ProvisionRequest.labels`).

    Returns:
        The id of the job that holds the lease instead; empty if this job holds it now.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the lease could not be written.
    """
    from tpux.store import files, locks

    path = _path(machine)
    mine = {label: labels[label] for label in OWNER_LABELS}
    with locks.held(path.with_suffix(".lock"), what=f"the lease of {machine}"):
        held = files.load(path) or {}
        holder = str(held.get("tpux-job", ""))
        if holder and {label: held.get(label) for label in OWNER_LABELS} != mine and is_active(holder):
            return holder
        if held != {**mine, "machine": machine}:
            files.write_atomic(path, files.dump({**mine, "machine": machine}))
    return ""


def release_lease(machine: str, labels: Mapping[str, str]) -> None:
    """Release a lease, if this job holds it.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the lease could not be removed.
    """
    from tpux.store import files, locks

    path = _path(machine)
    with locks.held(path.with_suffix(".lock"), what=f"the lease of {machine}"):
        held = files.load(path) or {}
        if {label: held.get(label) for label in OWNER_LABELS} == {label: labels[label] for label in OWNER_LABELS}:
            path.unlink()


def lease_holder(machine: str) -> str:
    """Return the id of the active job that leases a machine; empty if there is none."""
    from tpux.store import files

    holder = str((files.load(_path(machine)) or {}).get("tpux-job", ""))
    return holder if holder and is_active(holder) else ""


def _path(machine: str) -> Path:
    import hashlib
    import re

    from tpux.store import Store

    readable = re.sub("[^a-z0-9-]+", "-", machine.lower())[-80:]
    digest = hashlib.sha256(machine.encode()).hexdigest()[:8]
    return Store().shared / "machines" / f"{readable}-{digest}.json"
