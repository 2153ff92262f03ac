"""Creations: sent once, and followed until they show or are known to have come to nothing."""

from __future__ import annotations

from tpux import Denied, Waiting
from tpux_gcp import spec
from tpux_gcp.errors import CloudError, Problem, hint_for, mistake, of_status
from tpux_gcp.fallback import again, failed
from tpux_gcp.request import Answer, Errand, denied

VANISHED_AFTER = 120.0
SURE_AFTER = 10.0


def not_there(errand: Errand) -> Answer:
    """Ask for what is not there, or follow the creation that was sent."""
    memo = errand.memo
    if memo.borrowed:
        return errand.with_memo(memo.turn(memo.at, memo.candidate, errand.now)).wait(f"{errand.name} is gone", 0)
    if memo.renew:  # what had the name is gone
        memo = memo.turn(memo.at, memo.candidate, errand.now)
        return errand.with_memo(memo).wait(f"asking for {memo.candidate}", 0)
    if not memo.operation:
        return _create(errand)
    operation = errand.api.operation(memo.operation)
    if operation is not None and not operation.done:
        return errand.remember(problems=0).wait(f"{memo.candidate}: its creation has begun", growing(errand))
    if operation is not None and operation.code:
        return failed(errand, of_status(operation.code, operation.message, memo.project), gone=True)
    # Its creation is said to have succeeded (or nobody knows any more): it may only be slow to show.
    absent = memo.absent or errand.now
    if errand.now - absent < VANISHED_AFTER:
        return errand.remember(absent=absent).wait(f"{memo.candidate}: created, and not to be seen", 10)
    return again(errand, "it vanished")


def _create(errand: Errand) -> Answer:
    memo = errand.memo
    try:
        if errand.queue:
            message = spec.queued(errand.request, memo.candidate, memo.place)
            operation = errand.api.create_queued(memo.place, errand.name, message, memo.request_id)
        else:
            message = spec.node(errand.request, memo.candidate, queued=False)
            operation = errand.api.create_node(memo.place, errand.name, message)
    except CloudError as error:
        return _not_created(errand, error.problem)
    return errand.remember(operation=operation, problems=0).search(f"{memo.candidate}: asked for", 2)


def _not_created(errand: Errand, problem: Problem) -> Answer:
    if problem.kind == "stockout":
        return failed(errand, problem)
    if problem.kind in {"missing", "busy"}:  # a reservation, a network, a project that is not there
        return denied(Problem("config", problem.message, hint_for("config", problem.message, errand.memo.project)))
    if problem.kind == "exists" and errand.memo.problems >= 5:
        return Denied(mistake(problem.message, f"`tpux tpu describe {errand.name}` shows who has the name").failure)
    raise CloudError(problem)  # where it was done all the same, the next look finds it


def surely_nothing(errand: Errand) -> Waiting | None:
    """Make sure, where a creation was sent and never answered, or has not begun to show."""
    memo = errand.memo
    if memo.seen:
        return None
    if memo.operation:
        operation = errand.api.operation(memo.operation)
        if operation is None or operation.done:
            return None
        return errand.wait(f"{errand.name}: its creation has begun", 2)
    if memo.absent and errand.now - memo.absent >= SURE_AFTER:
        return None
    return errand.remember(absent=memo.absent or errand.now).wait("making sure that nothing was created", SURE_AFTER)


def growing(errand: Errand, most: float = 15.0) -> float:
    """Seconds to the next look: soon after a change, more and more seldom the longer nothing changes."""
    return min(most, max(2.0, (errand.now - errand.memo.seen_at) / 4))
