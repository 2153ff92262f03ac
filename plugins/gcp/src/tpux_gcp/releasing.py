"""Towards nothing left that costs money, one step at a time; what is not this job's is left alone."""

from __future__ import annotations

from tpux import ProvisionRequest, Released, Waiting, acquire_lease, release_lease
from tpux_gcp import names
from tpux_gcp.errand import Errand
from tpux_gcp.problems import CloudError, Problem, RefusedError
from tpux_gcp.things import LOST, Thing

# Seconds.
SURE_AFTER = 10.0
STUCK = 600.0
LOOK, LONGEST_LOOK = 2.0, 30.0


def release(request: ProvisionRequest, *, queue: bool) -> Released | Waiting:
    """Take one step towards nothing left."""
    try:
        errand = Errand.of(request, queue=queue)
    except RefusedError:
        return Released()  # a flag that cannot be: nothing was ever asked for
    if errand is None or _never_asked(errand):
        return Released()
    try:
        if errand.memo.borrowed and errand.tpu.release != "always":
            release_lease(errand.machine, request.labels)
            return Released()
        left = step_towards_nothing(errand)
    except CloudError as error:
        return _owed(errand, error.problem)
    if left is None and errand.memo.borrowed:
        release_lease(errand.machine, request.labels)
    return Released() if left is None else left


def step_towards_nothing(errand: Errand) -> Waiting | None:
    """Delete what there is under the request's name, and wait for its end; None once nothing of ours is there.

    Raises:
        CloudError: the API did not say.
    """
    thing = errand.look()
    if thing is None:
        return _surely_nothing(errand)
    if not _ours(errand, thing):
        return None
    leaving = thing.stand == "leaving"
    # A state of its own: the pauses grow from the first request to delete, not from when it became READY.
    errand = errand.saw(thing.state if leaving else f"to be deleted: {thing.state}")
    waited = errand.now - errand.memo.seen_at
    if not leaving:
        if thing.queued:
            errand.api.delete_queued(errand.memo.place, thing.queued)
        else:
            errand.api.delete_node(errand.memo.place, thing.nodes[0].name)
        # What does not go is asked to go again, more and more seldom.
        return errand.wait(f"deleting {errand.name}: {thing.state}", min(LONGEST_LOOK, max(LOOK, waited)))
    stuck = ", for more than ten minutes: it is the cloud's to end that" if waited > STUCK else ""
    return errand.wait(thing.state + stuck, min(LONGEST_LOOK, max(LOOK, waited / 4)))


def _never_asked(errand: Errand) -> bool:
    """Whether nothing can be there: the last was confirmed to be gone, and the next has not been asked for."""
    return errand.memo.phase == "resting"


def _surely_nothing(errand: Errand) -> Waiting | None:
    """Make sure, where a creation was sent and never answered, or has not begun to show."""
    memo = errand.memo
    if memo.seen:
        return None
    if memo.operation:
        operation = errand.api.operation(memo.operation)
        if operation is None or operation.done:
            return None
        return errand.wait(f"{errand.name}: its creation has begun", LOOK)
    if memo.absent and errand.now - memo.absent >= SURE_AFTER:
        return None
    return errand.remember(absent=memo.absent or errand.now).wait("making sure that nothing was created", SURE_AFTER)


def _ours(errand: Errand, thing: Thing) -> bool:
    """Whether it may be deleted.

    It bears the job's labels; or it is borrowed, and the config says `release: always`; or it is lost, and the
    job of this store that made it holds nothing any more: it would only keep quota, and the name.
    """
    whose = names.owner(thing.labels, errand.request)
    if whose == "ours":
        return True
    always = errand.memo.borrowed and errand.tpu.release == "always"
    lost = whose == "left" and thing.stand in LOST
    return (always or lost) and not acquire_lease(errand.machine, errand.request.labels)


def _owed(errand: Errand, problem: Problem) -> Waiting:
    """The release could not be confirmed, so it is still owed, whatever the reason."""
    waiting = errand.trouble(problem)
    hint = f" ({problem.hint})" if problem.hint else ""
    return Waiting(f"not given back yet: {waiting.why}{hint}", waiting.poll_after, waiting.saved_state)
