"""Whose a TPU is that has our request's name: ours, borrowed, or another job's."""

from __future__ import annotations

from tpux import Waiting, acquire_lease
from tpux_gcp import names
from tpux_gcp.errand import Errand
from tpux_gcp.problems import mistake
from tpux_gcp.things import Thing


def take(errand: Errand, thing: Thing) -> Waiting | None:
    """A step towards the machine being this job's; None once it is: by its labels, or borrowed and claimed.

    Raises:
        RefusedError: another job has it.
    """
    whose = names.owner(thing.labels, errand.request)
    if whose == "ours":
        return None
    if whose == "another":
        job, user, store = (thing.labels.get(key, "?") for key in (names.JOB, names.USER, names.STORE))
        here = store == errand.request.labels[names.STORE]
        raise mistake(
            f"the TPU {errand.name} in {errand.memo.zone} belongs to job {job} of {user}"
            + ("" if here else f" in another store ({store})"),
            f"`tpux delete {job}` gives it back, or choose another tpu.name" if here else "choose another tpu.name",
        )
    if not errand.memo.borrowed:  # remembered before it is claimed, so that a release knows
        return errand.remember(borrowed=True).wait(f"borrowing {errand.name}, which tpux did not make for this job", 0)
    if holder := acquire_lease(errand.machine, errand.request.labels):
        raise mistake(
            f"the TPU {errand.name} in {errand.memo.zone} is used by job {holder}",
            f"wait for it (`tpux wait {holder}`), or choose another tpu.name",
        )
    return None
