"""From nothing to a TPU, one step at a time: what is about to be done is remembered before it is done."""

from __future__ import annotations

from dataclasses import replace

from tpux import Denied, Ready, Request, Waiting, claim
from tpux_gcp import clock, flags, names, spec, where
from tpux_gcp.api import Api
from tpux_gcp.errand import Errand, denied
from tpux_gcp.memo import Memo
from tpux_gcp.oslogin import refuse_project_os_login
from tpux_gcp.problems import CloudError, Problem, RefusedError, hint_for, mistake, of_status
from tpux_gcp.releasing import step_towards_nothing
from tpux_gcp.things import Thing
from tpux_gcp.workers import allocation, put_keys

Answer = Ready | Waiting | Denied

# Seconds: the first pause after all combinations were tried, the longest, and how long an unknown state is stuck.
REST, LONGEST_REST = 30.0, 300.0
STUCK = 1800.0
VANISHED_AFTER = 120.0
PASSING = ("transient", "throttled", "busy", "exists", "missing")


def provision(request: Request, *, queue: bool) -> Answer:
    """Take one step towards the machines."""
    try:
        errand = Errand.of(request, queue=queue)
        if errand is None:
            return _plan(request)
    except RefusedError as error:
        return Denied(error.failure)
    except CloudError as error:  # nobody has been asked for anything yet
        return Waiting(str(error), REST) if error.problem.kind in PASSING else denied(error.problem)
    try:
        return _PHASES[errand.memo.phase](errand)
    except RefusedError as error:
        return Denied(error.failure)
    except CloudError as error:
        return errand.trouble(error.problem) if error.problem.kind in PASSING else denied(error.problem)


def _plan(request: Request) -> Answer:
    """Find out where, and refuse what cannot work, before anything is asked for."""
    request = flags.in_request(request)
    tpu = request.tpu
    names.node_id(request)
    combinations = spec.candidates(tpu)
    for candidate in combinations:
        spec.node(request, candidate, queued=False)
    endpoint = where.endpoint(tpu.endpoint)
    project = where.project(tpu.project, endpoint)
    memo = Memo(project=project, endpoint=endpoint).turn(0, combinations[0], clock.now())
    if request.public_keys:
        refuse_project_os_login(Api(project, endpoint), tpu)
    return Waiting(f"asking for {memo.candidate}", 0, memo.to_json())


# --- asking ---------------------------------------------------------------------------------------


def _ask(errand: Errand) -> Answer:
    """Look what there is, and do what follows."""
    thing = errand.look()
    if thing is None:
        return _not_there(errand)
    errand = errand.saw(thing.state).remember(absent=0.0)
    if (step := _take(errand, thing)) is not None:
        return step
    if thing.stand == "ready" and thing.workers:
        return _ready(errand, thing)
    if thing.stand == "failed":
        return _failed(errand, of_status(*(thing.error or (13, thing.state)), errand.memo.project))
    if thing.stand in {"preempted", "maintenance", "broken"}:
        return _beyond_recovery(errand, thing)
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
        errand = errand.saw("its creation has begun")
        return errand.wait(f"{memo.candidate}: its creation has begun", _growing(errand))
    if operation is not None and operation.code:
        return _failed(errand, of_status(operation.code, operation.message, memo.project), gone=True)
    # Its creation is said to have succeeded (or nobody knows any more): it may only be slow to show.
    absent = memo.absent or errand.now
    if errand.now - absent < VANISHED_AFTER:
        return errand.remember(absent=absent).wait(f"{memo.candidate}: created, and not to be seen", 10)
    return _again(errand, "it vanished")


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
        return _failed(errand, problem)
    if problem.kind in {"missing", "busy"}:  # a reservation, a network, a project that is not there
        return denied(Problem("config", problem.message, hint_for("config", problem.message, errand.memo.project)))
    if problem.kind == "exists" and errand.memo.problems >= 5:
        return Denied(mistake(problem.message, f"`tpux tpu describe {errand.name}` shows who has the name").failure)
    raise CloudError(problem)  # where it was done all the same, the next look finds it


def _failed(errand: Errand, problem: Problem, *, gone: bool = False) -> Answer:
    """What was asked for was not given: quota, auth and mistakes end the search, a stockout goes on with it.

    Args:
        errand: what was asked for.
        problem: why it was not given.
        gone: the API has just said that nothing is left of it.
    """
    if problem.kind in {"quota", "auth", "config"}:
        return denied(problem)
    memo = errand.memo.note("no capacity" if problem.kind == "stockout" else problem.message)
    errand = errand.with_memo(replace(memo, phase="giving-up", after="next"))
    return _go_on(errand) if gone else errand.wait(f"{memo.candidate}: {problem.message}", 0)


def _on_its_way(errand: Errand, thing: Thing) -> Answer:
    memo, others = errand.memo, len(errand.combinations) > 1
    if thing.stand == "leaving":  # somebody deletes it, or the cloud suspends it: wait for its end
        return errand.remember(renew=True).wait(thing.state, _growing(errand))
    if thing.stand == "queued" and others and errand.now - memo.since >= errand.tpu.zone_patience:
        return _give_up(errand, f"not served in {errand.tpu.zone_patience:.0f} s")
    if thing.stand == "making" and not memo.borrowed:
        if (not errand.queue or others) and errand.now - memo.seen_at >= STUCK:
            return _give_up(errand, f"stuck: {thing.state}")
        if memo.operation and errand.now - memo.seen_at >= VANISHED_AFTER and not errand.queue:
            operation = errand.api.operation(memo.operation)
            if operation is not None and operation.code:
                return _failed(errand, of_status(operation.code, operation.message, memo.project))
    if thing.stand == "queued":
        return errand.search(f"{memo.candidate}: {thing.state}", min(30.0, max(2.0, (errand.now - memo.since) / 2)))
    most = 30.0 if errand.now - memo.seen_at >= VANISHED_AFTER else 15.0
    return errand.search(f"{memo.candidate}: {thing.state}", _growing(errand, most))


def _growing(errand: Errand, most: float = 15.0) -> float:
    """Seconds to the next look: soon after a change, more and more seldom the longer nothing changes."""
    return min(most, max(2.0, (errand.now - errand.memo.seen_at) / 4))


def _give_up(errand: Errand, why: str) -> Waiting:
    memo = replace(errand.memo.note(why), phase="giving-up", after="next")
    return errand.with_memo(memo).wait(f"{memo.candidate}: {why}", 0)


def _again(errand: Errand, why: str) -> Waiting:
    memo = replace(errand.memo.note(why), phase="giving-up", after="again")
    return errand.with_memo(memo).wait(f"{memo.candidate}: {why}", 0)


def _beyond_recovery(errand: Errand, thing: Thing) -> Answer:
    if not errand.memo.borrowed or errand.tpu.release == "always":
        return _again(errand, thing.state)
    hint = f"tpux tpu delete {errand.name} --zone {errand.memo.zone}, or set tpu.release: always"
    return Denied(mistake(f"{thing.state}, and tpux did not make it", hint).failure)


def _stopped(errand: Errand, thing: Thing) -> Answer:
    """A node of one worker is started; a slice of several cannot even be stopped, the API says, so it is not whole."""
    if thing.queued or len(thing.nodes) != 1 or thing.workers > 1:
        return _beyond_recovery(errand, thing)
    errand.api.start_node(errand.memo.place, thing.nodes[0].name)
    return errand.wait(f"{thing.state}: starting it", 2)


# --- whose it is ----------------------------------------------------------------------------------


def _take(errand: Errand, thing: Thing) -> Waiting | None:
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
    if holder := claim(errand.machine, errand.request.labels):
        raise mistake(
            f"the TPU {errand.name} in {errand.memo.zone} is used by job {holder}",
            f"wait for it (`tpux wait {holder}`), or choose another tpu.name",
        )
    return None


def _ready(errand: Errand, thing: Thing) -> Answer:
    if (step := put_keys(errand, thing)) is not None:
        return step
    return Ready(allocation(errand, thing), errand.remember(patch="").memo.to_json())


# --- giving up, resting -----------------------------------------------------------------------------


def _give_back(errand: Errand) -> Answer:
    """Make sure that nothing is left of what was asked for; only then go on."""
    left = step_towards_nothing(errand)
    return _go_on(errand) if left is None else left


def _go_on(errand: Errand) -> Waiting:
    """Nothing is left of what was asked for: the next combination, the same one again, or a rest before either."""
    memo, now = errand.memo, errand.now
    if memo.after == "again":
        pause = 0.0 if memo.again == 0 else _rest(memo.again - 1)
        memo = replace(memo.turn(memo.at, memo.candidate, now), again=memo.again + 1)
    elif memo.at + 1 < len(errand.combinations):
        memo = memo.turn(memo.at + 1, errand.combinations[memo.at + 1], now)
        return errand.with_memo(memo).search(f"asking for {memo.candidate}", 0)
    else:
        pause = _rest(memo.round)
        memo = replace(memo.turn(0, errand.combinations[0], now), round=memo.round + 1)
    if not pause:
        return errand.with_memo(memo).search(f"asking again for {memo.candidate}", 0)
    errand = errand.with_memo(replace(memo, phase="resting", rest_until=now + pause))
    return errand.search(f"asking again for {memo.candidate} in {pause:.0f} s", pause)


def _rest(times: int) -> float:
    return min(REST * 2.0 ** min(times, 8), LONGEST_REST)


def _resting(errand: Errand) -> Answer:
    memo = errand.memo
    if 0 < (left := memo.rest_until - errand.now) <= LONGEST_REST:
        return errand.search(f"asking again for {memo.candidate} in a while", left)
    return errand.with_memo(memo.turn(memo.at, memo.candidate, errand.now)).wait(f"asking for {memo.candidate}", 0)


_PHASES = {"asking": _ask, "giving-up": _give_back, "resting": _resting}
