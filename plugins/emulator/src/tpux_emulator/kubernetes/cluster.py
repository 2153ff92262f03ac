"""The state of the emulated cluster: its objects, and the changes to them."""

from __future__ import annotations

import asyncio
import secrets
import string
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.kubernetes.objects import (
    BY_MODEL,
    JOBSET_UID,
    ClusterQueue,
    Condition,
    Event,
    JobSet,
    KubeObject,
    LocalQueue,
    Metadata,
    Namespace,
    OwnerReference,
    Pod,
    QueueSpec,
    QueueStatus,
    WorkloadPriorityClass,
)
from tpux_emulator.kubernetes.status import KubeError, invalid, not_found
from tpux_emulator.protojson import JsonObject

Kind = TypeVar("Kind", bound=KubeObject)
_SUFFIX = string.digits + string.ascii_lowercase


class NodePool(BaseModel):
    """A node pool that exists.

    Args:
        name: its name.
        labels: the labels of its nodes, such as those of accelerator, topology and capacity.
        nodes: how many nodes it has: the hosts of one slice.
        chips: the chips of each node; 0 for nodes without TPUs.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    labels: dict[str, str] = {}
    nodes: int = Field(default=1, ge=1)
    chips: int = Field(default=4, ge=0)


class ClusterSettings(BaseModel):
    """The settings of the cluster. Durations are emulated seconds.

    Args:
        node_pools: the node pools; None means that one is created for each slice that finds none.
        images: the images that can be pulled (shell patterns).
        pull_error: what the nodes say of the others.
        denied: what the client may not do, such as `create jobsets` or `create pods/exec`.
        exec_protocols: the subprotocols of exec that the server has.
        namespaces: the namespaces that exist.
        queue: the name of the LocalQueue, which each namespace has; empty for a cluster without Kueue.
        quota: the chips of the ClusterQueue.
        queue_stopped: whether the LocalQueue is stopped: nothing is admitted.
        priorities: the WorkloadPriorityClasses.
        jobset: whether JobSet is installed; where its definition is deleted, all JobSets are, with their pods.
        schedule: until a pod has its node.
        start: until a pod's container runs.
        admission: until Kueue admits a workload.
        scale_up: until a new node pool has its nodes.
        retry: between two attempts to create a node pool, to pull an image and so on.
        spot_notice: between SIGTERM and SIGKILL when a spot node is preempted.
    """

    model_config = ConfigDict(extra="forbid")
    node_pools: list[NodePool] | None = None
    images: list[str] = ["*"]
    pull_error: str = "rpc error: code = NotFound desc = failed to pull and unpack image: not found"
    denied: list[str] = []
    exec_protocols: list[Literal["v5.channel.k8s.io", "v4.channel.k8s.io"]] = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
    namespaces: list[str] = ["default"]
    queue: str = "tpu-queue"
    quota: int = Field(default=1024, ge=0)
    queue_stopped: bool = False
    priorities: dict[str, int] = {"high": 1000, "medium": 500, "low": 100}
    jobset: bool = True
    schedule: float = 0.1
    start: float = 0.1
    admission: float = 0.1
    scale_up: float = 0.2
    retry: float = 1.0
    spot_notice: float = 15.0


class Cluster:
    """All objects by model, namespace and name.

    As the cloud, it is used on one event loop, and each change is made between two awaits.

    Args:
        cloud: whose clock and fault rules apply.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.settings = cloud, ClusterSettings()
        self._tables: defaultdict[type[KubeObject], dict[tuple[str, str], KubeObject]] = defaultdict(dict)
        self._by_uid: dict[str, KubeObject] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self.token = ""  # with TLS, what clients must have
        self._version = 1000
        self.oldest = 0
        self.configure(self.settings)

    @property
    def version(self) -> int:
        """The resourceVersion of the last change."""
        return self._version

    @property
    def now(self) -> float:
        """The emulated time in Unix seconds."""
        return self.cloud.clock.now()

    def configure(self, settings: ClusterSettings) -> None:
        """Replace the settings, and the objects that they describe."""
        self.settings = settings
        gone = () if settings.jobset else (JobSet,)  # with their definition
        for model in (Namespace, LocalQueue, ClusterQueue, WorkloadPriorityClass, *gone):
            for each in self.all(model):
                self.remove(each)
        for namespace in settings.namespaces:
            self.put(self.new(Namespace, namespace, ""))
        if settings.queue:
            stopped = settings.queue_stopped
            state = "LocalQueueStopped" if stopped else "Ready"
            message = (
                "Can't submit new workloads to localQueue" if stopped else "Can submit new workloads to localQueue"
            )
            for namespace in settings.namespaces:
                queue = self.new(LocalQueue, settings.queue, namespace, spec=QueueSpec(cluster_queue="cluster-queue"))
                queue.status = QueueStatus()
                self.set_condition(queue.status.conditions, "Active", not stopped, state, message)
                self.put(queue)
            self.put(self.new(ClusterQueue, "cluster-queue", "", spec=QueueSpec()))
            for name, value in settings.priorities.items():
                self.put(self.new(WorkloadPriorityClass, name, "", value=value))

    def new(self, model: type[Kind], name: str, namespace: str, **fields: object) -> Kind:
        """Return a new object, which is not in the cluster yet."""
        resource = BY_MODEL[model]
        metadata = Metadata(name=name, namespace=namespace or None)
        body = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata, **fields}
        return model.model_validate(body)

    def all(self, model: type[Kind], namespace: str = "") -> list[Kind]:
        """Return the objects of a model, in all namespaces or in one."""
        return [
            each
            for each in self._tables[model].values()
            if isinstance(each, model) and namespace in ("", each.metadata.namespace)
        ]

    def lookup(self, model: type[KubeObject], namespace: str, name: str) -> KubeObject | None:
        """Return an object; None if there is none."""
        return self._tables[model].get((namespace, name))

    def get(self, model: type[Kind], namespace: str, name: str) -> Kind:
        """Return an object.

        Raises:
            KubeError: there is none.
        """
        found = self.lookup(model, namespace, name)
        if not isinstance(found, model):
            raise not_found(BY_MODEL[model].full, name)
        return found

    def create(self, each: Kind) -> Kind:
        """Add an object that a client or a controller wants.

        Raises:
            KubeError: there is one of its name.
        """
        meta = each.metadata
        if not meta.name and meta.generate_name:
            meta.name = meta.generate_name + random_suffix()
        if not meta.name:
            raise KubeError(422, f'{each.kind} "" is invalid: metadata.name: Required value: name is required')
        if self.lookup(type(each), meta.namespace or "", meta.name) is not None:
            raise KubeError(409, f'{BY_MODEL[type(each)].full} "{meta.name}" already exists', "AlreadyExists")
        meta.uid = meta.resource_version = meta.deletion_timestamp = None
        meta.generation = 1
        return self.put(each)

    def put(self, each: Kind) -> Kind:
        """Store a new or changed object, and wake the controllers."""
        self._version += 1
        meta = each.metadata
        meta.uid = meta.uid or str(uuid.uuid4())
        meta.creation_timestamp = meta.creation_timestamp or self.timestamp()
        meta.resource_version = str(self._version)
        self._tables[type(each)][_key(each)] = self._by_uid[meta.uid] = each
        self._wake(meta.uid)
        return each

    def remove(self, each: KubeObject) -> None:
        """Remove an object."""
        if self.exists(each):
            del self._tables[type(each)][_key(each)]
            self._by_uid.pop(each.uid, None)
            self._version += 1
            self._wake(each.uid)

    def find(self, model: type[Kind], uid: str) -> Kind | None:
        """Return the object of a uid; None if it is gone."""
        found = self._by_uid.get(uid)
        return found if isinstance(found, model) else None

    async def wait(self, uid: str = "", seconds: float | None = None) -> None:
        """Wait for a change of an object, or of any object; at most for emulated seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, set()).add(future)
        try:
            await asyncio.wait_for(future, None if seconds is None else self.cloud.clock.real_seconds(seconds))
        except TimeoutError:
            return
        finally:
            waiting = self._waiting.get(uid, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(uid, None)

    def _wake(self, uid: str) -> None:
        for key in (uid, ""):
            for future in self._waiting.pop(key, set()):
                if not future.done():
                    future.set_result(None)

    def exists(self, each: KubeObject) -> bool:
        """Return whether this very object is in the cluster."""
        return self._tables[type(each)].get(_key(each)) is each

    def patch(self, each: Kind, change: JsonObject) -> Kind:
        """Apply a JSON merge patch to an object.

        Raises:
            KubeError: the result is not valid, or what may not change would.
        """
        before = each.to_json()
        try:
            after = type(each).model_validate(_merge(before, change))
        except ValidationError as error:
            raise invalid(each.kind, each.name, error) from error
        version = after.metadata.resource_version
        if version and version != each.metadata.resource_version:
            raise KubeError(
                409,
                f'Operation cannot be fulfilled on {BY_MODEL[type(each)].plural} "{each.name}": the object has been'
                " modified; please apply your changes to the latest version and try again",
            )
        if _key(after) != _key(each) or after.uid != each.uid:
            raise KubeError(422, f'{each.kind} "{each.name}" is invalid: metadata: field is immutable')
        if isinstance(each, JobSet) and isinstance(after, JobSet) and _frozen(each) != _frozen(after):
            raise KubeError(422, f'JobSet "{each.name}" is invalid: spec: field is immutable')
        if after.to_json().get("spec") != before.get("spec"):
            after.metadata.generation = (each.metadata.generation or 0) + 1
        return self.put(after)

    def delete(self, each: KubeObject, *, grace: int | None = None, foreground: bool = False) -> KubeObject:
        """Delete an object as a client asks for: a pod with its grace, a JobSet with or after its pods.

        Args:
            each: the object.
            grace: the pod's grace in seconds; None for that of its spec.
            foreground: whether the object stays until what it owns is gone.
        """
        if isinstance(each, Pod):
            seconds = each.spec.termination_grace_period_seconds if grace is None else grace
            before = each.metadata.deletion_grace_period_seconds
            if each.deleting and before is not None and before <= seconds:
                return each
            each.metadata.deletion_grace_period_seconds = seconds
            each.metadata.deletion_timestamp = self.timestamp(self.now + seconds)
            return self.put(each)
        if foreground:
            if not each.deleting:
                each.metadata.deletion_timestamp = self.timestamp()
                each.metadata.finalizers = ["foregroundDeletion"]
                self.put(each)
            return each
        self.remove(each)
        return each

    def event(self, about: KubeObject, reason: str, message: str, *, warning: bool = False, by: str = "") -> None:
        """Record an event; the same one again raises its count."""
        now = self.timestamp()
        for each in self.all(Event):
            if each.involved_object.get("uid") == about.uid and (each.reason, each.message) == (reason, message):
                each.count, each.last_timestamp = each.count + 1, now
                self.put(each)
                return
        subject: JsonObject = {
            "kind": about.kind,
            "name": about.name,
            "uid": about.uid,
            "apiVersion": about.api_version,
        }
        if about.metadata.namespace:
            subject["namespace"] = about.metadata.namespace
        event = self.new(
            Event, f"{about.name}.{uuid.uuid4().hex[:16]}", about.metadata.namespace or "default",
            involvedObject=subject, reason=reason, message=message, type="Warning" if warning else "Normal",
            firstTimestamp=now, lastTimestamp=now, source={"component": by}, reportingComponent=by,
        )  # fmt: skip
        self.put(event)

    def set_condition(
        self, conditions: list[Condition], kind: str, status: bool, reason: str = "", message: str = ""
    ) -> bool:
        """Set a condition; return whether it has changed."""
        text: Literal["True", "False"] = "True" if status else "False"
        old = next((each for each in conditions if each.type == kind), None)
        if old and (old.status, old.reason or "", old.message or "") == (text, reason, message):
            return False
        moment = old.last_transition_time if old and old.status == text else self.timestamp()
        new = Condition(
            type=kind, status=text, reason=reason or None, message=message or None, last_transition_time=moment
        )
        conditions[:] = [*(each for each in conditions if each is not old), new]
        return True

    def pods_of(self, jobset: JobSet) -> list[Pod]:
        """Return the pods of a JobSet."""
        return [pod for pod in self.all(Pod) if pod.label(JOBSET_UID) == jobset.uid]

    def timestamp(self, seconds: float | None = None) -> str:
        """Return a time as Kubernetes writes it; without `seconds`, now."""
        return format_time(self.now if seconds is None else seconds)


def format_time(seconds: float) -> str:
    """Return Unix seconds as Kubernetes writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def random_suffix() -> str:
    """Return five random characters, as in the names of pods."""
    return "".join(secrets.choice(_SUFFIX) for _ in range(5))


def is_true(conditions: list[Condition], kind: str) -> bool:
    """Return whether a condition is True."""
    return any(each.type == kind and each.status == "True" for each in conditions)


def owner(each: KubeObject) -> OwnerReference:
    """Return a reference to an owner that controls."""
    return OwnerReference(
        api_version=each.api_version, kind=each.kind, name=each.name, uid=each.uid, controller=True,
        block_owner_deletion=True,
    )  # fmt: skip


def _key(each: KubeObject) -> tuple[str, str]:
    return each.metadata.namespace or "", each.metadata.name


def _frozen(jobset: JobSet) -> JsonObject:
    """Return the part of a JobSet's spec that may not change."""
    spec = jobset.spec.model_dump(mode="json", exclude={"suspend", "ttl_seconds_after_finished"})
    return {} if jobset.spec.suspend else spec


def _merge(target: JsonObject, change: JsonObject) -> JsonObject:
    """Return an object after a JSON merge patch (RFC 7386)."""
    merged = dict(target)
    for key, value in change.items():
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged
