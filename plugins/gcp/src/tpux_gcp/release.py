"""Towards nothing left that costs money, one step at a time; what is not this job's is left alone."""

from __future__ import annotations

from tpux import Released, Request, Waiting, claim, unclaim
from tpux_gcp import labels
from tpux_gcp.creation import surely_nothing
from tpux_gcp.errors import CloudError, Problem, RefusedError
from tpux_gcp.request import Errand
from tpux_gcp.resource import LOST, Thing

STUCK = 600.0
LOOK, LONGEST_LOOK = 2.0, 30.0


def release(request: Request, *, queue: bool) -> Released | Waiting:
    """Take one step towards nothing left."""
    try:
        errand = Errand.of(request, queue=queue)
    except RefusedError:
        return Released()  # a flag that cannot be: nothing was ever asked for
    if errand is None or _never_asked(errand):
        return Released()
    try:
        if errand.memo.borrowed and errand.tpu.release != "always":
            unclaim(errand.machine, request.labels)
            return Released()
        left = step_towards_nothing(errand)
    except CloudError as error:
        return _owed(errand, error.problem)
    if left is None and errand.memo.borrowed:
        unclaim(errand.machine, request.labels)
    return Released() if left is None else left


def step_towards_nothing(errand: Errand) -> Waiting | None:
    """Delete what there is under the request's name, and wait for its end; None once nothing of ours is there.

    Raises:
        CloudError: the API did not say.
    """
    thing = errand.look()
    if thing is None:
        return surely_nothing(errand)
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


def _ours(errand: Errand, thing: Thing) -> bool:
    """Whether it may be deleted.

    It bears the job's labels; or it is borrowed, and the config says `release: always`; or it is lost, and the
    job of this store that made it holds nothing any more: it would only keep quota, and the name.
    """
    whose = labels.owner(thing.labels, errand.request)
    if whose == "ours":
        return True
    always = errand.memo.borrowed and errand.tpu.release == "always"
    lost = whose == "left" and thing.stand in LOST
    return (always or lost) and not claim(errand.machine, errand.request.labels)


def _owed(errand: Errand, problem: Problem) -> Waiting:
    """The release could not be confirmed, so it is still owed, whatever the reason."""
    waiting = errand.trouble(problem)
    hint = f" ({problem.hint})" if problem.hint else ""
    return Waiting(f"not given back yet: {waiting.why}{hint}", waiting.look_again_after, waiting.memo)
