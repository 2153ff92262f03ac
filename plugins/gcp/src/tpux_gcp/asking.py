"""A combination's turn: look what there is under the request's name, and do the one thing that follows."""

from __future__ import annotations

from tpux import Denied, Ready
from tpux_gcp import spec
from tpux_gcp.errand import Answer, Errand, denied
from tpux_gcp.going_on import again, beyond_recovery, failed, give_up
from tpux_gcp.owning import take
from tpux_gcp.problems import CloudError, Problem, hint_for, mistake, of_status
from tpux_gcp.things import LOST, Thing
from tpux_gcp.workers import allocation, put_keys

# Seconds: how long a state that passes may last, and how long something created may stay out of sight.
STUCK = 1800.0
VANISHED_AFTER = 120.0


def ask(errand: Errand) -> Answer:
    """Look what there is, and do what follows."""
    thing = errand.look()
    if thing is None:
        return _not_there(errand)
    errand = errand.saw(thing.state).remember(absent=0.0)
    if (step := take(errand, thing)) is not None:
        return step
    if thing.stand == "ready" and thing.workers:
        return _ready(errand, thing)
    if thing.stand == "failed" and not errand.memo.borrowed:
        return failed(errand, of_status(*(thing.error or (13, thing.state)), errand.memo.project))
    if thing.stand in LOST:
        return beyond_recovery(errand, thing)
    if thing.stand == "stopped":
        return _stopped(errand, thing)
    return _on_its_way(errand, thing)


def _not_there(errand: Errand) -> Answer:
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
        return errand.remember(problems=0).wait(f"{memo.candidate}: its creation has begun", _growing(errand))
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


def _on_its_way(errand: Errand, thing: Thing) -> Answer:
    memo, others = errand.memo, len(errand.combinations) > 1
    if thing.stand == "leaving":  # somebody deletes it, or the cloud suspends it: wait for its end
        return errand.remember(renew=True).wait(thing.state, _growing(errand))
    if thing.stand == "queued" and others and errand.now - memo.since >= errand.tpu.zone_patience:
        return give_up(errand, f"not served in {errand.tpu.zone_patience:.0f} s")
    if thing.stand == "making" and not memo.borrowed:
        if (not errand.queue or others) and errand.now - memo.seen_at >= STUCK:
            return give_up(errand, f"stuck: {thing.state}")
        if memo.operation and errand.now - memo.seen_at >= VANISHED_AFTER and not errand.queue:
            operation = errand.api.operation(memo.operation)
            if operation is not None and operation.code:
                return failed(errand, of_status(operation.code, operation.message, memo.project))
    if thing.stand == "queued":
        return errand.search(f"{memo.candidate}: {thing.state}", min(30.0, max(2.0, (errand.now - memo.since) / 2)))
    most = 30.0 if errand.now - memo.seen_at >= VANISHED_AFTER else 15.0
    return errand.search(f"{memo.candidate}: {thing.state}", _growing(errand, most))


def _growing(errand: Errand, most: float = 15.0) -> float:
    """Seconds to the next look: soon after a change, more and more seldom the longer nothing changes."""
    return min(most, max(2.0, (errand.now - errand.memo.seen_at) / 4))


def _stopped(errand: Errand, thing: Thing) -> Answer:
    """A node of one worker is started; a slice of several cannot even be stopped, the API says, so it is not whole."""
    if thing.queued or len(thing.nodes) != 1 or thing.workers > 1:
        return beyond_recovery(errand, thing)
    errand.api.start_node(errand.memo.place, thing.nodes[0].name)
    return errand.wait(f"{thing.state}: starting it", 2)


def _ready(errand: Errand, thing: Thing) -> Answer:
    if (step := put_keys(errand, thing)) is not None:
        return step
    return Ready(allocation(errand, thing), errand.remember(patch="").memo.to_json())
