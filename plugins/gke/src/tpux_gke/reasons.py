"""What Kubernetes and Kueue say: why a job waits, and why its pods are gone. Their words are passed on as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tpux_gke.client import ApiError, Client
from tpux_gke.objects import Object, condition, is_being_deleted, is_true, name_of, part, parts, text, uid_of, words

_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff"})
_NEVER_STARTS = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_PASSES = re.compile(
    r"too ?many ?requests|rate ?limit|quota exceeded|time(d )?-?out|deadline exceeded|connection (refused|reset)"
    r"|no such host|server misbehaving|unexpected EOF|\b5\d\d (internal|bad|service|gateway)",
    re.IGNORECASE,
)
"""What registries and networks say of a pull that may succeed later, whatever else the message has."""
_LOGIN_HINT = (
    "the nodes may not pull tpu.image, or it does not exist: give their service account the role"
    " roles/artifactregistry.reader, or name a Secret in tpu.pod: {spec: {imagePullSecrets: [{name: NAME}]}}"
)
_FINAL = (
    (r"unauthorized|forbidden|denied|authorization failed|authentication required|no basic auth", _LOGIN_HINT),
    (r"no match(ing manifest)? for", "correct tpu.image: it has no variant for the nodes' kind of processor"),
    (r"not ?found|manifest unknown|name unknown|does not exist", "correct tpu.image: there is no such image"),
    (r"invalid reference|invalid image name", "correct tpu.image: it is not the name of an image"),
)
"""What is said of a pull that fails in the same way each time, and what to do. Anything else is waited for."""
_OTHER_HINT = "correct tpu.image, or what it needs: tpu.volumes, tpu.pod"
_SIGNALS = ("137", "143")
"""Exit codes of a container that a node has ended without a word, such as one that goes."""
_DISK = ("ephemeral-storage", "ephemeral local storage", "emptydir")


def workload_of(client: Client, jobset: Object) -> Object | None:
    """Return Kueue's Workload of a JobSet, by its owner: its name has a hash in it."""
    path = client.namespaced(client.kueue(), "workloads")
    found = client.items(path, labelSelector=f"kueue.x-k8s.io/job-uid={uid_of(jobset)}") or client.items(path)
    for one in found:
        if any(text(owner, "uid") == uid_of(jobset) for owner in parts(one, "metadata", "ownerReferences")):
            return one
    return None


def why_queued(workload: Object | None, queue: str) -> str:
    """Return why Kueue has not admitted a Workload, "" if it has."""
    if workload is None:
        return f"queued in {queue}: Kueue has not seen it yet"
    if is_true(workload, "Admitted"):
        return ""
    kinds = ("QuotaReserved", "Admitted")
    said = next((words(one) for kind in kinds if text(one := condition(workload, kind), "message")), "")
    return f"queued in {queue}: {said or 'waiting for quota'}"


def why_evicted(workload: Object | None) -> str:
    """Return why Kueue has taken the quota away."""
    found = (condition(workload or {}, name) for name in ("Preempted", "Evicted", "QuotaReserved"))
    return "; ".join(words(one) for one in found if one.get("status") == "True" and one.get("type") != "QuotaReserved")


def why_not_ready(pods: Sequence[Object], expected: int) -> str:
    """Return what the pods that are not ready wait for."""
    pending = [pod for pod in pods if not is_true(pod, "Ready")]
    said = [text(condition(pod, "PodScheduled"), "message") for pod in pending if not is_true(pod, "PodScheduled")]
    said += [words(one) for pod in pending for one in _waiting(pod)]
    usual = (one for one in said if one and "follower pod node selector not set" not in one)
    reason = next(usual, "") or next((f"{name_of(pod)} is {text(pod, 'status', 'phase')}" for pod in pending), "")
    count = f"{len(pods) - len(pending)} of {expected} pods are ready"
    return f"{count}: {reason}" if reason else count


def cannot_start(client: Client, pods: Iterable[Object], tries: int) -> tuple[str, str]:
    """Return why a pod does not start, in the words of its node, and what to do if it never will.

    Args:
        client: the cluster's API.
        pods: the pods.
        tries: how often a node must have failed in the same way until it counts as final.

    Returns:
        The reason, "" if none is known; the hint, "" while it may still start.
    """
    for pod in pods:
        for state in _waiting(pod):
            if (reason := text(state, "reason")) not in _PULLS | _NEVER_STARTS:
                continue
            try:
                failed = [one for one in client.events(name_of(pod)) if text(one, "reason") == "Failed"]
            except ApiError as error:
                if error.status != 403:
                    raise
                return f"pod {name_of(pod)}: {words(state)} (you may not list events, which say more)", ""
            pulls = [one for one in failed if "Failed to pull image" in text(one, "message")]
            if reason in _NEVER_STARTS:
                count = _count(one for one in failed if one not in pulls and not _of_pull(one))
                return f"pod {name_of(pod)}: {words(state)}", _OTHER_HINT if count >= tries else ""
            final = [one for one in pulls if _why_final(text(one, "message"))]
            last = max(pulls, key=lambda one: text(one, "lastTimestamp"), default={})
            hint = _why_final(text(last, "message")) if _count(final) >= tries else ""
            return f"pod {name_of(pod)}: {'; '.join(filter(None, (words(state), text(last, 'message'))))}", hint
    return "", ""


def why_ended(pods: Iterable[Object]) -> str:
    """Return why a container has ended by itself, such as for an image without a shell; "" if none has."""
    for pod in pods:
        if own_fault(pod)[0]:
            return own_fault(pod)[1]
        if text(pod, "status", "reason") or is_true(pod, "DisruptionTarget"):
            continue  # Kubernetes has ended it
        for status in _containers(pod):
            ended = part(status, "state", "terminated")
            if text(ended, "exitCode") not in {"", "0", *_SIGNALS}:
                said = f"{words(ended)}, exit code {text(ended, 'exitCode')}"
                return f"pod {name_of(pod)}: container {text(status, 'name')}: {said}"
    return ""


def _count(events: Iterable[Object]) -> int:
    return sum(int(text(one, "count") or "1") for one in events)


def _of_pull(event: Object) -> bool:
    return any(reason in text(event, "message") for reason in _PULLS)


def _why_final(message: str) -> str:
    """Return what to do about a pull that fails in the same way each time; "" if it may succeed later."""
    if _PASSES.search(message):
        return ""
    return next((hint for pattern, hint in _FINAL if re.search(pattern, message, re.IGNORECASE)), "")


def is_lost(pod: Object | None) -> bool:
    """Return whether a pod does not run any more, or is about to end."""
    return pod is None or is_being_deleted(pod) or text(pod, "status", "phase") in {"Failed", "Succeeded"}


def own_fault(pod: Object) -> tuple[str, str]:
    """Return the kind of failure and the words, if the program itself has ended its pod; else two empty texts."""
    for status in parts(pod, "status", "containerStatuses"):
        ended = part(status, "state", "terminated")
        if text(ended, "reason") == "OOMKilled":
            return "out-of-memory", f"pod {name_of(pod)}: OOMKilled, exit code {text(ended, 'exitCode')}"
    said = text(pod, "status", "message")
    if text(pod, "status", "reason") == "Evicted" and any(word in said.lower() for word in _DISK):
        return "program", f"pod {name_of(pod)}: Evicted: {said}"
    if text(pod, "status", "reason") == "Evicted" and "memory" in said.lower():
        return "out-of-memory", f"pod {name_of(pod)}: Evicted: {said}"
    return "", ""


def why_lost(client: Client, pod: Object | None, name: str, node: str) -> str:
    """Return why a pod is gone, from whichever object says it."""
    if pod is not None and (said := words(condition(pod, "DisruptionTarget"))):
        return f"pod {name}: {said}"
    if pod is not None and (said := words(part(pod, "status"))):
        return f"pod {name}: {said}"
    state = "is gone" if pod is None else "is being deleted" if is_being_deleted(pod) else text(pod, "status", "phase")
    return f"pod {name} {state}{_of_node(client, node)}"


def _of_node(client: Client, name: str) -> str:
    try:
        found = client.get(f"api/v1/nodes/{name}") if name else {}
    except ApiError:
        return ""  # nodes are of the cluster: not everybody may see them
    if found is None:
        return f"; node {name} does not exist any more"
    if (ready := condition(found, "Ready")) and ready.get("status") != "True":
        return f"; node {name} is not ready: {words(ready)}"
    return ""


def _waiting(pod: Object) -> list[Object]:
    return [state for one in _containers(pod) if (state := part(one, "state", "waiting"))]


def _containers(pod: Object) -> list[Object]:
    return [*parts(pod, "status", "initContainerStatuses"), *parts(pod, "status", "containerStatuses")]
