"""From nothing to a TPU, one step at a time: what is about to be done is remembered before it is done."""

from __future__ import annotations

import logging

from tpux import Allocation, Denied, Ready, Request, Waiting, Worker, claim
from tpux_gcp import labels, spec, validation
from tpux_gcp import project as where
from tpux_gcp.api import Api
from tpux_gcp.creation import VANISHED_AFTER, growing, not_there
from tpux_gcp.errors import CloudError, Problem, RefusedError, mistake, of_status
from tpux_gcp.fallback import LONGEST_REST, REST, beyond_recovery, failed, give_up, go_on
from tpux_gcp.release import step_towards_nothing
from tpux_gcp.request import Answer, Errand, Memo, denied
from tpux_gcp.resource import LOST, NodeView, Thing

_log = logging.getLogger(__name__)

PASSING = ("transient", "throttled", "busy", "exists", "missing")
# Seconds: how long a state that passes may last, and how long something created may stay out of sight.
STUCK = 1800.0


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
    request = validation.in_request(request)
    tpu = request.tpu
    validation.node_id(request)
    combinations = spec.candidates(tpu)
    for candidate in combinations:
        spec.node(request, candidate, queued=False)
    endpoint = where.endpoint(tpu.endpoint)
    project = where.project(tpu.project, endpoint)
    memo = Memo.begin(project, endpoint, combinations[0])
    if request.public_keys:
        spec.refuse_project_os_login(Api(project, endpoint), tpu)
    return Waiting(f"asking for {memo.candidate}", 0, memo.to_json())


def ask(errand: Errand) -> Answer:
    """Look what there is, and do what follows."""
    thing = errand.look()
    if thing is None:
        return not_there(errand)
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


def _give_back(errand: Errand) -> Answer:
    """Make sure that nothing is left of what was asked for; only then go on."""
    left = step_towards_nothing(errand)
    return go_on(errand) if left is None else left


def _resting(errand: Errand) -> Answer:
    memo = errand.memo
    if 0 < (left := memo.rest_until - errand.now) <= LONGEST_REST:
        return errand.search(f"asking again for {memo.candidate} in a while", left)
    return errand.with_memo(memo.turn(memo.at, memo.candidate, errand.now)).wait(f"asking for {memo.candidate}", 0)


def _on_its_way(errand: Errand, thing: Thing) -> Answer:
    memo, others = errand.memo, len(errand.combinations) > 1
    if thing.stand == "leaving":  # somebody deletes it, or the cloud suspends it: wait for its end
        return errand.remember(renew=True).wait(thing.state, growing(errand))
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
    return errand.search(f"{memo.candidate}: {thing.state}", growing(errand, most))


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


def take(errand: Errand, thing: Thing) -> Waiting | None:
    """A step towards the machine being this job's; None once it is: by its labels, or borrowed and claimed.

    Raises:
        RefusedError: another job has it.
    """
    whose = labels.owner(thing.labels, errand.request)
    if whose == "ours":
        return None
    if whose == "another":
        job, user, store = (thing.labels.get(key, "?") for key in (labels.JOB, labels.USER, labels.STORE))
        here = store == errand.request.labels[labels.STORE]
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


def put_keys(errand: Errand, thing: Thing) -> Waiting | None:
    """Put the public keys that are missing into the metadata of nodes, one after the other; None once all are there.

    Raises:
        RefusedError: the nodes demand OS Login.
        CloudError: the API refused, or did not answer.
    """
    keys, memo = errand.request.public_keys, errand.memo
    if not keys:
        return None
    if memo.patch and (operation := errand.api.operation(memo.patch)) is not None:
        if not operation.done:
            return errand.wait(f"putting keys on {errand.name}", 1)
        if operation.code:
            problem = of_status(operation.code, operation.message, memo.project)
            return errand.remember(patch="").trouble(Problem("transient", problem.message))
    for node in thing.nodes:
        metadata = dict(node.metadata)
        spec.refuse_os_login(metadata, f"the metadata of {node.name}")
        if not set(keys) <= set(metadata.get(spec.SSH_KEYS, "").splitlines()):
            patch = errand.api.set_metadata(memo.place, node.name, spec.with_keys(metadata, keys))
            return errand.remember(patch=patch).wait(f"putting keys on {node.name}", 1)
    return None


def allocation(errand: Errand, thing: Thing) -> Allocation:
    """The machines as core holds them: the workers of all slices, in the order of the nodes."""
    workers: list[Worker] = []
    for number, node in enumerate(thing.nodes):
        keys = _host_keys(errand, node)
        for endpoint, key in zip(node.endpoints, keys, strict=True):
            address = endpoint.internal if errand.tpu.internal_ips or not endpoint.external else endpoint.external
            details = {"host_keys": key} if key else {}
            workers.append(Worker(len(workers), number, address, endpoint.internal, details))
    return Allocation(
        name=errand.name,
        transport="ssh",
        workers=tuple(workers),
        slices=len(thing.nodes),
        zone=errand.memo.zone,
        borrowed=errand.memo.borrowed,
    )


def _host_keys(errand: Errand, node: NodeView) -> list[str]:
    """Each worker's host keys, one `TYPE KEY` a line; empty where the API has none: ssh then trusts the first."""
    nothing = [""] * len(node.endpoints)
    try:
        published = errand.api.host_keys(errand.memo.place, node.name)
    except CloudError as error:
        _log.info("no host keys of %s: %s", node.name, error)
        return nothing
    if len(published) != len(nothing):
        return nothing
    return ["\n".join(f"{kind} {key}" for kind, key in sorted(keys.items())) for keys in published]


_PHASES = {"asking": ask, "giving-up": _give_back, "resting": _resting}
