"""What plugins may know of the store: which jobs hold machines, and who has claimed those that tpux did not make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpux.errors import TpuxError

OWNER_LABELS = ("tpux-store", "tpux-user", "tpux-job")
"""The labels that say whose a machine is (`Request.labels`)."""


def store_id() -> str:
    """The random name of this store, as the label `tpux-store` carries it.

    Raises:
        TpuxError: another process held the store's lock for long.
    """
    from tpux.store import Store

    return Store().id


def is_active(job: str) -> bool:
    """Whether the job of that id, whoever's it is, lives in this store or has not yet given its machines back.

    One that cannot be read counts as living.
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
    """Claim a machine that tpux did not make for one job, for as long as that job lives.

    The claim is kept on disk and changed under a lock, so that it outlives the supervisor; that of a job that
    holds no machines any more is void.

    Args:
        machine: its name; the same for everybody who could mean it.
        labels: the job's, as `Request.labels` has them.

    Returns:
        The id of the other job that has claimed it; empty where the claim is now this job's.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the claim could not be written.
    """
    from tpux.store import files, locks

    path = _path(machine)
    mine = {mark: labels[mark] for mark in OWNER_LABELS}
    with locks.held(path.with_suffix(".lock"), what=f"the claim on {machine}"):
        there = files.load(path) or {}
        holder = str(there.get("tpux-job", ""))
        if holder and {mark: there.get(mark) for mark in OWNER_LABELS} != mine and is_active(holder):
            return holder
        if there != {**mine, "machine": machine}:
            files.write_atomic(path, files.dump({**mine, "machine": machine}))
    return ""


def release_lease(machine: str, labels: Mapping[str, str]) -> None:
    """Give up a claim, if it is this job's.

    Raises:
        TpuxError: another process held the lock for long.
        OSError: the claim could not be removed.
    """
    from tpux.store import files, locks

    path = _path(machine)
    with locks.held(path.with_suffix(".lock"), what=f"the claim on {machine}"):
        there = files.load(path) or {}
        if {mark: there.get(mark) for mark in OWNER_LABELS} == {mark: labels[mark] for mark in OWNER_LABELS}:
            path.unlink()


def lease_holder(machine: str) -> str:
    """The id of the living job that has claimed a machine, empty where none has."""
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
