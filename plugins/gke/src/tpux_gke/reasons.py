"""What Kubernetes and Kueue say: why a job waits, and why its pods are gone. Their words are passed on as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpux_gke.client import ApiError, Client
from tpux_gke.objects import Object, condition, is_being_deleted, is_true, name_of, part, parts, text, uid_of, words

_NEVER_STARTS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError"}
)  # fmt: skip
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


def cannot_start(client: Client, pods: Iterable[Object], tries: int) -> str:
    """Return why a pod never starts, such as for an image that is not there, once the node has tried so often."""
    for pod in pods:
        for state in _waiting(pod):
            if text(state, "reason") not in _NEVER_STARTS:
                continue
            failed = [one for one in client.events(name_of(pod)) if text(one, "reason") == "Failed"]
            count = sum(int(text(one, "count") or "1") for one in failed)
            if count >= tries:
                said = next((text(one, "message") for one in failed if text(one, "message")), "")
                return f"pod {name_of(pod)}: {words(state)}; {said}"
    return ""


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
    statuses = [*parts(pod, "status", "initContainerStatuses"), *parts(pod, "status", "containerStatuses")]
    return [state for one in statuses if (state := part(one, "state", "waiting"))]
