"""Allocator `gke`: a JobSet holds the pods, found again by its name and the labels of its owner."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from tpux import (
    Allocation,
    Denied,
    Failure,
    JsonValue,
    MachineStatus,
    Orphan,
    ProvisionRequest,
    Ready,
    Released,
    Waiting,
    Worker,
    hookimpl,
)
from tpux_gke import reasons
from tpux_gke.client import FOREVER_REFUSED, JOBSETS, ApiError, Client, client_of
from tpux_gke.manifest import is_ours, jobset, jobset_name, node_selector, selector
from tpux_gke.objects import (
    POOL,
    Object,
    condition,
    is_being_deleted,
    is_true,
    name_of,
    part,
    parts,
    position,
    text,
    uid_of,
    words,
)
from tpux_gke.scripts import NOTICE
from tpux_gke.section import GkeTpuSection, section_of

POLL = 10.0
"""Seconds between two looks at machines that are ready."""
_SOON, _LATER = 1.0, 10.0
_START_TRIES = 3
"""How often a start must have failed in the same way until it counts as impossible."""
_ENDED = "ended"
"""In the saved state: how many JobSets in a row have ended by themselves before their pods were ready."""
_SHELL = "tpu.image must have sh, coreutils, grep and util-linux, as python:3.12-slim; see also tpu.pod"
UNANSWERED_FOR = 90.0
"""Seconds for which a creation without an answer may still take effect: API servers and gateways end it by then."""
_FAULT = "gke-fault.json"
"""In the job's directory: that the program has ended its own pod. New pods would end in the same way."""
_DENIED = "gke-denied.json"
"""The same, once `provision` has answered with it; removed when that answer is stored."""
_TAINT = "cloud.google.com/impending-node-termination"
_log = logging.getLogger(__name__)
FailureKind = Literal["config", "auth", "out-of-memory", "program"]


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Create the JobSet unless there is one, and wait until all of its pods are ready."""
    fault, denied = request.directory / _FAULT, request.directory / _DENIED
    if not request.interrupted:
        denied.unlink(missing_ok=True)  # the answer with it was stored
    if fault.exists():
        fault.replace(denied)
    if denied.exists():
        found = cast("dict[str, str]", json.loads(denied.read_text(encoding="utf-8")))
        if found.get("attempt") == str(request.attempt) and not _is_resumed(request):
            kind: FailureKind = "out-of-memory" if found["kind"] == "out-of-memory" else "program"
            return _denied(kind, found["evidence"], found["hint"])
        denied.unlink()
    answer = _provision(request)
    if isinstance(answer, Waiting) and answer.saved_state is not None and _ENDED in request.saved_state:
        answer = replace(answer, saved_state={_ENDED: request.saved_state[_ENDED], **answer.saved_state})
    sent_at = time.time() if request.interrupted else _sent_at(request.saved_state)
    if sent_at + UNANSWERED_FOR <= time.time():
        return answer
    before = {key: value for key, value in request.saved_state.items() if key != "releasing"}
    if isinstance(answer, Denied):  # it has no state: a release must know of what was sent before
        return (
            Waiting(answer.failure.evidence, _SOON, {**before, "sent_at": sent_at}) if request.interrupted else answer
        )
    kept = before if answer.saved_state is None else {}
    return replace(answer, saved_state={**kept, "sent_at": sent_at, **(answer.saved_state or {})})


def _is_resumed(request: ProvisionRequest) -> bool:
    """Return whether a user has resumed the job since its last attempt: then it is to be tried again."""
    from tpux import api

    return api.job(request.labels["tpux-job"]).failure is None


def _provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    tpu = section_of(request.tpu)
    try:
        client = client_of(request.resolved)
        existing = client.jobset(jobset_name(request))
        if existing is None:
            return _create(client, request, tpu)
        if not is_ours(existing, request):
            hint = "choose another name with tpu.name; tpux does not touch what is not the job's"
            return _denied("config", f"JobSet {name_of(existing)} exists, and is not of this job", hint)
        if is_being_deleted(existing):
            return Waiting(f"JobSet {name_of(existing)} is being deleted", _SOON)
        if is_true(existing, "Failed") or is_true(existing, "Completed"):
            return _replace(client, request, existing)
        return _started(client, request, tpu, existing)
    except ApiError as error:
        return _refused(error)


def _create(client: Client, request: ProvisionRequest, tpu: GkeTpuSection) -> Waiting | Denied:
    if (left := _left(client, request)) is not None:
        return left
    try:
        made = client.create_jobset(jobset(request, tpu))
    except ApiError as error:
        if error.status == 409:  # the next step sees whose it is
            return Waiting(error.message, _SOON)
        answer = _refused(error)
        if isinstance(answer, Waiting) and (error.status == 0 or error.status >= 500):
            return replace(answer, saved_state={"sent_at": time.time()})
        return answer
    return Waiting(f"JobSet {name_of(made)} is created", 0.3, {"uid": uid_of(made)})


def _replace(client: Client, request: ProvisionRequest, existing: Object) -> Waiting | Denied:
    """Delete a JobSet that has ended before its pods were ready; the next steps create another one.

    Not for ever: an image without a shell, for example, ends each of them in the same way.
    """
    name = name_of(existing)
    ended = next((words(one) for kind in ("Failed", "Completed") if (one := condition(existing, kind))), "")
    fault = reasons.why_ended(client.pods(selector(request))) or (ended if is_true(existing, "Completed") else "")
    count = int(str(request.saved_state.get(_ENDED) or 0)) + 1 if fault else 0
    if count >= _START_TRIES:
        return _denied("config", f"the pods of JobSet {name} have ended {count} times before a start: {fault}", _SHELL)
    _delete(client, existing)
    why = f"JobSet {name} has ended ({fault or ended}): it is created again"
    return Waiting(why, _LATER, {**request.saved_state, _ENDED: count})


def _started(
    client: Client, request: ProvisionRequest, tpu: GkeTpuSection, existing: Object
) -> Ready | Waiting | Denied:
    state: Mapping[str, JsonValue] = {"uid": uid_of(existing)}
    if tpu.queue and (why := reasons.why_queued(reasons.workload_of(client, existing), tpu.queue)):
        return Waiting(why, 2.0, state)
    if part(existing, "spec").get("suspend") is True:
        return Waiting(f"JobSet {name_of(existing)} is suspended", 2.0, state)
    hosts = tpu.slice().hosts
    expected = tpu.node_count * hosts
    pods = sorted((pod for pod in client.pods(selector(request)) if not reasons.is_lost(pod)), key=position)
    positions = [position(pod) for pod in pods]
    wanted = [(index, host) for index in range(tpu.node_count) for host in range(hosts)]
    if positions != wanted or not all(is_true(pod, "Ready") for pod in pods):
        why, hint = reasons.cannot_start(client, pods, _START_TRIES)
        if hint:
            return _denied("config", why, hint)
        why = "; ".join(filter(None, (reasons.why_not_ready(pods, expected), why)))
        return Waiting(f"JobSet {name_of(existing)}: {why}", 1.0, state)
    if why := _misplaced(pods):
        return Waiting(f"JobSet {name_of(existing)}: {why}", 2.0, state)
    workers = tuple(
        Worker(
            index,
            slice=position(pod)[0],
            address=name_of(pod),
            internal_ip=text(pod, "status", "podIP"),
            details={"pod": name_of(pod), "uid": uid_of(pod), "node": text(pod, "spec", "nodeName")},
        )
        for index, pod in enumerate(pods)
    )
    saved: dict[str, JsonValue] = {
        "uid": uid_of(existing),
        "pods": [[uid_of(pod), name_of(pod), text(pod, "spec", "nodeName"), position(pod)[0]] for pod in pods],
        "nodes": _node_labels(tpu, pods),
    }
    allocation = Allocation(
        name_of(existing),
        "gke",
        workers,
        slices=tpu.node_count,
        storage=tpu.storage or "",
        zone=client.cluster.context or client.cluster.namespace,
        notice=NOTICE,
        accelerator=tpu.accelerator or "",
        pricing=tpu.pricing,
    )
    return Ready(allocation, saved)


def _node_labels(tpu: GkeTpuSection, pods: Sequence[Object]) -> str:
    """Return the labels of the pods' nodes: their pools where each slice says its own, else those of the config."""
    pools = _pools(pods)
    if len(pools) == tpu.node_count:
        return f"{POOL} in ({','.join(sorted(pool for found in pools.values() for pool in found))})"
    return ",".join(f"{name}={value}" for name, value in node_selector(tpu).items())


def _misplaced(pods: Sequence[Object]) -> str:
    """Return why the pods of a slice are not on the nodes of one pool, as far as they say their pools."""
    spread = ((number, found) for number, found in _pools(pods).items() if len(found) > 1)
    return next((f"slice {number} is spread over {', '.join(sorted(found))}" for number, found in spread), "")


def _pools(pods: Sequence[Object]) -> dict[int, set[str]]:
    """Return the node pools of each slice, as far as its pods say them."""
    pools: dict[int, set[str]] = {}
    for pod in pods:
        if pool := text(pod, "spec", "nodeSelector", POOL):
            pools.setdefault(position(pod)[0], set()).add(pool)
    return pools


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Report what has become of the pods, in the words of Kubernetes."""
    saved = request.saved_state
    known = [[str(item) for item in one] for one in cast("list[list[JsonValue]]", saved.get("pods") or [])]
    if not known:
        return MachineStatus("gone", evidence="no JobSet was created")
    try:
        client = client_of(request.resolved)
        now = {uid_of(pod): pod for pod in client.pods(selector(request))}
        lost = [one for one in known if reasons.is_lost(now.get(one[0]))]
        if not lost:
            return _of_nodes(client, known, str(saved.get("nodes") or ""))
        found = client.jobset(jobset_name(request))
        confirmed = any(one[0] not in now for one in lost)
        slices = sorted({int(one[3]) for one in lost})
        if found is None or uid_of(found) != saved.get("uid"):
            other = "does not exist" if found is None else "is another one now"
            return MachineStatus("gone", f"JobSet {jobset_name(request)} {other}", POLL, confirmed=confirmed)
        if part(found, "spec").get("suspend") is True:
            workload = reasons.workload_of(client, found) if section_of(request.tpu).queue else None
            why = reasons.why_evicted(workload) or words(condition(found, "Suspended")) or "spec.suspend is true"
            return MachineStatus("preempted", f"JobSet {name_of(found)} is suspended: {why}", POLL, confirmed=confirmed)
        _note_own_fault(request, [pod for one in lost if (pod := now.get(one[0])) is not None])
        uid, name, node, _ = next((one for one in lost if one[0] in now), lost[0])
        why = reasons.why_lost(client, now.get(uid), name, node)
        return MachineStatus("preempted", why, POLL, lost=slices, confirmed=confirmed)
    except ApiError as error:
        return MachineStatus("unknown", error.message, max(POLL, error.retry_after or 0.0), hint=error.hint)


def _of_nodes(client: Client, known: Sequence[Sequence[str]], labels: str) -> MachineStatus:
    """Return the state of pods that run: their nodes may be about to be taken away."""
    try:
        nodes = {name_of(node): node for node in client.items("api/v1/nodes", labelSelector=labels)}
    except ApiError as error:
        if error.status != 403:
            raise
        nodes = {}  # nodes are of the cluster: not everybody may see them
    ending = {
        number: f"node {node}: taint {_TAINT}"
        for _, _, node, number in known
        if any(text(taint, "key") == _TAINT for taint in parts(nodes.get(node, {}), "spec", "taints"))
    }
    if ending:
        slices = sorted(map(int, ending))
        return MachineStatus("maintenance", "; ".join(ending.values()), POLL, lost=slices)
    return MachineStatus("ready", f"{len(known)} pods run", POLL)


def _note_own_fault(request: ProvisionRequest, pods: Sequence[Object]) -> None:
    """Write down that the program has ended a pod: a preemption has no budget, and this would go on for ever."""
    for pod in pods:
        kind, evidence = reasons.own_fault(pod)
        if kind:
            hint = "the program needs less memory, or the pod a larger limit: tpu.pod; then: tpux resume"
            if kind == "program":
                hint = "the program has filled the node's disk: write to a volume (tpu.volumes); then: tpux resume"
            path = request.directory / _FAULT
            note = {"kind": kind, "evidence": evidence, "hint": hint, "attempt": str(request.attempt)}
            path.with_suffix(".new").write_text(json.dumps(note), encoding="utf-8")
            path.with_suffix(".new").replace(path)
            return


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """Delete the JobSet, and wait until it and all of its pods are gone, and none can follow them."""
    saved = dict(request.saved_state)
    if request.interrupted and not saved.get("releasing"):
        saved["sent_at"] = time.time()  # at the latest: the process that may have sent it has ended
    saved["releasing"] = True
    answer = _release(request)
    left = min(_sent_at(saved), time.time()) + UNANSWERED_FOR - time.time()
    if isinstance(answer, Released) and left > 0:
        why = f"a request for JobSet {jobset_name(request)} was not answered, and may still take effect"
        return Waiting(why, min(_LATER, left), saved, ends_within=left)
    return replace(answer, saved_state=saved) if isinstance(answer, Waiting) else answer


def _release(request: ProvisionRequest) -> Released | Waiting:
    try:
        client = client_of(request.resolved)
        existing = client.jobset(jobset_name(request))
        if existing is not None and not is_ours(existing, request):
            if uid_of(existing) == request.saved_state.get("uid"):
                what = f"JobSet {name_of(existing)}, which the job has created, has not its labels any more"
                command = client.cluster.kubectl("delete", "jobset", name_of(existing))
                return Released(f"{what}; delete it with: {command}")
            return Released()  # ours, and its pods, were gone before another one could have this name
        if existing is not None:
            if not is_being_deleted(existing):
                _delete(client, existing)
            return Waiting(f"JobSet {name_of(existing)} is being deleted", 0.5)
        return _left(client, request) or Released()
    except ApiError as error:
        return Waiting(error.message, error.retry_after or _LATER, hint=error.hint)


def _left(client: Client, request: ProvisionRequest) -> Waiting | None:
    """Return what is left of a JobSet that is gone; None if nothing is."""
    if not (pods := client.pods(selector(request))):
        return None
    if kept := [pod for pod in pods if not is_being_deleted(pod)]:
        why = f"{len(kept)} pods are left of the JobSet {jobset_name(request)}, which is gone: {name_of(kept[0])}, ..."
        delete = client.cluster.kubectl("delete", "pods", "--selector", selector(request))
        return Waiting(why, 2.0, hint=f"if Kubernetes does not delete them by itself: {delete}")
    return Waiting(f"{len(pods)} pods are ending, such as {name_of(pods[0])}", 0.5)


def _sent_at(saved: Mapping[str, JsonValue]) -> float:
    """Return when the last creation without an answer was sent, 0 if none was."""
    return float(str(saved.get("sent_at") or 0))


@hookimpl
def find_orphans(places: Sequence[Mapping[str, JsonValue]]) -> list[Orphan]:
    """Return the JobSets that jobs of this store created and no longer hold."""
    from tpux.api import machines

    found: dict[str, Orphan] = {}  # by uid: several clients may be of one cluster, with logins of their own
    for client in {id(one): one for one in map(client_of, (place for place in places if place.get("server")))}.values():
        try:
            store = machines.store_id()
            listed = client.items(client.namespaced(JOBSETS, "jobsets"), labelSelector=f"tpux-store={store}")
        except ApiError as error:
            _log.warning("no search for orphans at %s: %s", client.cluster.server, error)
            continue
        for one in listed:
            job = text(one, "metadata", "labels", "tpux-job")
            if job and not machines.is_active(job):
                found.setdefault(uid_of(one), _orphan(client, one, job))
    return [*found.values()]


def _orphan(client: Client, thing: Object, job: str) -> Orphan:
    where = f"namespace {client.cluster.namespace} of {client.cluster.server}"
    command = client.cluster.kubectl("delete", "jobset", name_of(thing))
    return Orphan(name_of(thing), where, f"JobSet, of job {job}", command)


def _delete(client: Client, thing: Object) -> None:
    """Delete a JobSet if it is still this very one."""
    path = client.namespaced(JOBSETS, "jobsets", name_of(thing))
    body: dict[str, JsonValue] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": uid_of(thing)},
    }
    try:
        client.request("DELETE", path, body=body)
    except ApiError as error:
        if error.status not in {404, 409}:  # another one has this name by now: the next step sees it
            raise


def _refused(error: ApiError) -> Waiting | Denied:
    if error.status in FOREVER_REFUSED:
        return _denied("config" if error.status != 403 else "auth", error.message, error.hint)
    return Waiting(error.message, error.retry_after or _LATER, hint=error.hint)


def _denied(kind: FailureKind, evidence: str, hint: str = "") -> Denied:
    return Denied(Failure(kind, evidence=evidence, hint=hint))
