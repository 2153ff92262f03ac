"""The JobSet of a request: pods that only hold TPU nodes, in which tpux runs the program by exec."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import cast

from tpux import JsonValue, ProvisionRequest
from tpux_gke.execs import CONTAINER
from tpux_gke.objects import POOL, Object, text
from tpux_gke.scripts import KEEPER
from tpux_gke.section import HOME, GkeTpuSection

REPLICATED_JOB = "slice"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_OWNER = ("tpux-store", "tpux-job", "tpux-token")
_LONGEST_NAME = 36
"""Of a JobSet: the names of its jobs, pods and host names are longer, and may have 63 characters."""


def jobset_name(request: ProvisionRequest) -> str:
    """Return the name of the request's JobSet: the request's own, shortened where it is too long."""
    name = re.sub("[^-a-z0-9]", "-", request.name.lower()).strip("-")
    name = name if re.match("[a-z]", name) else f"t-{name}".rstrip("-")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(request.name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9].rstrip('-')}-{digest}"


def labels_of(owner: Mapping[str, str]) -> dict[str, str]:
    """Return the owner's labels in the characters that Kubernetes accepts."""
    return {key: re.sub("[^-A-Za-z0-9_.]", "-", value)[:63].strip("-_.") for key, value in owner.items()}


def is_ours(thing: Object, request: ProvisionRequest) -> bool:
    """Return whether an object was made for this request's job."""
    wanted = labels_of(request.labels)
    return all(text(thing, "metadata", "labels", key) == wanted.get(key, "") for key in _OWNER)


def selector(request: ProvisionRequest) -> str:
    """Return the labels of the request's pods."""
    wanted = {**labels_of(request.labels), JOBSET_NAME: jobset_name(request)}
    return ",".join(f"{key}={wanted[key]}" for key in (*_OWNER, JOBSET_NAME) if wanted.get(key))


def node_selector(tpu: GkeTpuSection) -> dict[str, str]:
    """Return the labels of the nodes that the section `tpu` asks for."""
    one = tpu.slice()
    chosen = {"cloud.google.com/gke-tpu-accelerator": one.label, "cloud.google.com/gke-tpu-topology": one.topology}
    return chosen | _capacity(tpu)


def jobset(request: ProvisionRequest, tpu: GkeTpuSection) -> dict[str, JsonValue]:
    """Return the JobSet of a request."""
    labels = labels_of(request.labels)
    one = tpu.slice()
    on_jobset: dict[str, JsonValue] = dict(labels)
    if tpu.queue:
        on_jobset["kueue.x-k8s.io/queue-name"] = tpu.queue
        if tpu.priority:
            on_jobset["kueue.x-k8s.io/priority-class"] = tpu.priority
    lost: JsonValue = [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    job: dict[str, JsonValue] = {
        "parallelism": one.hosts,
        "completions": one.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": lost},
        "template": pod_template(tpu, labels),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": jobset_name(request),
            "labels": on_jobset,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": POOL},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0, "restartStrategy": "BlockingRecreate"},
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": tpu.node_count, "template": {"spec": job}}],
        },
    }


def pod_template(tpu: GkeTpuSection, labels: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return the template of the pods, with what `tpu.pod` changes in it."""
    chips = str(tpu.slice().chips)
    volumes = {
        f"volume-{number}": (path, cast("dict[str, JsonValue]", volume))
        for number, (path, volume) in enumerate(tpu.all_volumes().items())
    }
    tolerations: list[JsonValue] = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    tolerations += [{"key": key, "operator": "Equal", "value": value} for key, value in _capacity(tpu).items()]
    container: dict[str, JsonValue] = {
        "name": CONTAINER,
        "image": tpu.image,
        "command": ["/bin/sh", "-c", KEEPER, "tpux-keeper"],
        "env": [{"name": "HOME", "value": HOME}],
        "resources": {"limits": {"google.com/tpu": chips}, "requests": {"google.com/tpu": chips}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
    }
    spec: dict[str, JsonValue] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(tpu.termination_grace),
        "nodeSelector": dict(node_selector(tpu)),
        "tolerations": tolerations,
        "containers": [container],
        "volumes": [{"name": name, **volume} for name, (_, volume) in volumes.items()],
    }
    if tpu.service_account:
        spec["serviceAccountName"] = tpu.service_account
    if tpu.priority and not tpu.queue:
        spec["priorityClassName"] = tpu.priority
    template: dict[str, JsonValue] = {"metadata": {"labels": dict(labels)}, "spec": spec}
    return cast("dict[str, JsonValue]", merged(template, cast("JsonValue", tpu.pod)))


def merged(base: JsonValue, change: JsonValue) -> JsonValue:
    """Return a value with the changes of another: mappings by key, lists of named mappings by name, null removes."""
    if isinstance(base, dict) and isinstance(change, dict):
        both = {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
        return {key: value for key, value in both.items() if value is not None}
    if isinstance(base, list) and isinstance(change, list) and _are_named(base) and _are_named(change):
        changes = {_name(one): one for one in change}
        kept = [merged(one, changes.pop(_name(one), {})) for one in base]
        return [*kept, *changes.values()]
    return change


def _are_named(items: Sequence[JsonValue]) -> bool:
    return bool(items) and all(isinstance(one, dict) and "name" in one for one in items)


def _name(item: JsonValue) -> str:
    return str(item["name"]) if isinstance(item, dict) else ""


def _capacity(tpu: GkeTpuSection) -> dict[str, str]:
    if tpu.capacity == "spot":
        return {"cloud.google.com/gke-spot": "true"}
    if tpu.capacity == "flex-start":
        return {"cloud.google.com/gke-flex-start": "true"}
    return {"cloud.google.com/reservation-name": tpu.reservation} if tpu.reservation else {}
