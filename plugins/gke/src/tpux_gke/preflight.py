"""Findings before anything is created: what the cluster does not have, and what the user may not do there."""

from __future__ import annotations

from collections.abc import Iterator

from tpux import Finding, Job, JsonValue, TpuxError
from tpux_gke.client import JOBSETS, ApiError, Client, client_of
from tpux_gke.manifest import node_selector
from tpux_gke.objects import condition, is_true, part, words
from tpux_gke.section import GkeTpuSection

_JOBSET_GROUP, _KUEUE_GROUP = "jobset.x-k8s.io", "kueue.x-k8s.io"
_NEEDED = (
    *((_JOBSET_GROUP, "jobsets", "", verb) for verb in ("get", "create", "delete", "list")),
    ("", "pods", "", "list"),
    ("", "pods", "exec", "create"),
    ("", "pods", "exec", "get"),
    ("", "events", "", "list"),
)
_QUEUED = ((_KUEUE_GROUP, "workloads", "", "list"), (_KUEUE_GROUP, "localqueues", "", "get"))


def check(job: Job, tpu: GkeTpuSection) -> list[Finding]:
    """Return what is wrong with the section `tpu` on this cluster."""
    missing = [*_of_config(tpu)]
    if missing:
        return missing
    try:
        client = client_of(job.resolved.get("gke", {}))
    except TpuxError as error:
        return [Finding("error", error.message, error.where, hint=error.hint)]
    return [*_of_output(job, tpu), *_unverified(client), *_of_cluster(client, tpu)]


def _of_output(job: Job, tpu: GkeTpuSection) -> Iterator[Finding]:
    hint = "use a persistentVolumeClaim, nfs, or csi such as that of GCS FUSE, in tpu.volumes"
    for where, path in (("tpu.storage", tpu.storage), ("job.output_dir", job.job.output_dir)):
        if path and (kind := tpu.passing_volume(path)):
            message = f"{path} is on a volume that ends with its pod ({kind}): what is written there is lost then"
            yield Finding("warning", message, where=where, hint=hint)


def _unverified(client: Client) -> Iterator[Finding]:
    if client.cluster.insecure:
        hint = "give the cluster's certificate-authority in the kubeconfig, in place of insecure-skip-tls-verify"
        message = f"the certificate of {client.cluster.server} is not verified: another server could take the token"
        yield Finding("warning", message, hint=hint)


def _of_cluster(client: Client, tpu: GkeTpuSection) -> list[Finding]:
    try:
        if client.get(JOBSETS) is None:
            hint = "ask the administrator to install JobSet: https://jobset.sigs.k8s.io"
            return [Finding("error", f"{client.cluster.server} does not serve JobSet v1alpha2", hint=hint)]
        found = [*_permissions(client, tpu)]
        return found or [*_queue(client, tpu), *_nodes(client, tpu)]
    except ApiError as error:
        level = "error" if error.status in {401, 403} else "warning"
        return [Finding(level, error.message, hint=error.hint)]  # type: ignore[arg-type]
    except TpuxError as error:
        return [Finding("error", error.message, error.where, hint=error.hint)]


def _of_config(tpu: GkeTpuSection) -> Iterator[Finding]:
    try:
        tpu.slice()
    except TpuxError as error:
        yield Finding("error", error.message, where=error.where or "tpu.accelerator", hint=error.hint)
    if not tpu.image:
        hint = "one with sh, coreutils, grep and util-linux, such as python:3.12-slim"
        yield Finding("error", "the pods need an image", where="tpu.image", hint=hint)


def _permissions(client: Client, tpu: GkeTpuSection) -> Iterator[Finding]:
    """Ask the API itself what the user may do."""
    for group, resource, subresource, verb in (*_NEEDED, *(_QUEUED if tpu.queue else ())):
        asked: dict[str, JsonValue] = {
            "namespace": client.cluster.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }
        review: dict[str, JsonValue] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        if part(client.request("POST", path, body=review), "status").get("allowed") is not True:
            name = f"{resource}/{subresource}" if subresource else resource
            hint = "ask the cluster's administrator for the role in docs/gke.md"
            message = f"you may not {verb} {name} in the namespace {client.cluster.namespace}"
            yield Finding("error", message, where="tpu.namespace", hint=hint)


def _queue(client: Client, tpu: GkeTpuSection) -> Iterator[Finding]:
    if not tpu.queue:
        return
    queue = client.get(client.namespaced(client.kueue(), "localqueues", tpu.queue))
    namespace = client.cluster.namespace
    if queue is None:
        hint = client.cluster.kubectl("get", "localqueues")
        yield Finding("error", f"there is no LocalQueue {tpu.queue} in {namespace}", where="tpu.queue", hint=hint)
    elif not is_true(queue, "Active"):
        said = words(condition(queue, "Active")) or "it is not active"
        yield Finding("error", f"LocalQueue {tpu.queue}: {said}", where="tpu.queue")


def _nodes(client: Client, tpu: GkeTpuSection) -> Iterator[Finding]:
    """Say that no node has the labels: a node pool that is scaled to 0, or that GKE creates, may still serve it."""
    wanted = ",".join(f"{name}={value}" for name, value in node_selector(tpu).items())
    try:
        nodes = client.items("api/v1/nodes", labelSelector=wanted)
    except ApiError as error:
        if error.status == 403:
            return  # nodes are of the cluster: not everybody may see them
        raise
    if not nodes:
        hint = "right if a node pool with these labels scales up from 0, or node auto-provisioning creates one"
        yield Finding("warning", f"no node has the labels {wanted}", where="tpu.accelerator", hint=hint)
