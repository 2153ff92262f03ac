"""The objects of the Kubernetes API that the emulator has, as models that also check what clients send.

Of JobSet (v1alpha2) and Kueue (v1beta2) these are the fields that tpux and xpk use; unknown ones are refused. Pods have
all the fields that clients send; the emulator reads some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tpux_emulator.protojson import JsonObject

JOBSET_GROUP, KUEUE_GROUP = "jobset.x-k8s.io", "kueue.x-k8s.io"
QUEUE_LABEL, PRIORITY_LABEL = f"{KUEUE_GROUP}/queue-name", f"{KUEUE_GROUP}/priority-class"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET_UID, JOBSET_NAME = "jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/jobset-name"
JOB_INDEX, POD_INDEX = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"
RESTART = "jobset.sigs.k8s.io/restart-attempt"
POOL = "cloud.google.com/gke-nodepool"
ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
CHIPS = "google.com/tpu"
_LABEL_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


class Part(BaseModel):
    """A part of an object; unknown fields are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Open(Part):
    """A part of which only some fields are named here."""

    model_config = ConfigDict(extra="allow")


class OwnerReference(Open):
    """Who an object belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Open):
    """Name, labels and so on."""

    name: str = Field(default="", pattern=f"^$|{_LABEL_NAME}")
    namespace: str | None = None
    generate_name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None


class Condition(Part):
    """A condition of an object's status."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    observed_generation: int | None = None


class KubeObject(Part):
    """Any object."""

    api_version: str
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.metadata.uid or ""

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    def label(self, name: str) -> str:
        """Return a label's value; empty if there is no such label."""
        return (self.metadata.labels or {}).get(name, "")

    def to_json(self) -> JsonObject:
        """Return the object as JSON."""
        dumped: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped


class EnvVar(Open):
    """An environment variable of a container."""

    name: str
    value: str | None = None


# The API server answers with strings, whatever it was sent.
Quantity = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]


class Resources(Open):
    """What a container needs."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class VolumeMount(Open):
    """Where a container sees a volume; with a root file system of its own it is an empty directory."""

    name: str
    mount_path: str


class Container(Open):
    """A container of a pod."""

    name: str
    image: str | None = None
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    resources: Resources = Resources()
    volume_mounts: list[VolumeMount] = []


class Toleration(Open):
    """A taint that a pod tolerates."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PodSpec(Open):
    """What a pod is to be."""

    containers: list[Container] = Field(min_length=1)
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    node_name: str | None = None
    hostname: str | None = None
    subdomain: str | None = None
    restart_policy: Literal["Always", "OnFailure", "Never"] = "Always"
    termination_grace_period_seconds: int = 30
    scheduling_gates: list[JsonObject] | None = None


class ContainerStatus(Open):
    """How a container is; the official client refuses one without these fields."""

    name: str
    image: str
    image_id: Annotated[str, Field(alias="imageID")] = ""
    container_id: Annotated[str | None, Field(alias="containerID")] = None
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    state: JsonObject = {}


class PodStatus(Open):
    """How a pod is."""

    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    pod_ip: Annotated[str | None, Field(alias="podIP")] = None
    host_ip: Annotated[str | None, Field(alias="hostIP")] = None
    start_time: str | None = None


class Pod(KubeObject):
    """A pod."""

    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def chips(self) -> int:
        """How many chips it needs."""
        return sum(int(container.resources.limits.get(CHIPS, 0)) for container in self.spec.containers)

    @property
    def ended(self) -> bool:
        """Whether its container has ended for good."""
        return self.status.phase in ("Succeeded", "Failed")


class Taint(Part):
    """A taint of a node."""

    key: str
    effect: str
    value: str | None = None


class NodeSpec(Open):
    """What a node is to be."""

    taints: list[Taint] = []
    unschedulable: bool | None = None


class NodeStatus(Open):
    """How a node is."""

    conditions: list[Condition] = []
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class Node(KubeObject):
    """A node of the cluster."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Event(KubeObject):
    """An event."""

    involved_object: JsonObject
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int = 1
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: JsonObject = {}
    reporting_component: str = ""
    reporting_instance: str = ""


class PodTemplate(Open):
    """The template of a job's pods."""

    metadata: Metadata = Metadata()
    spec: PodSpec


class PodFailureRule(Part):
    """A rule of a job's podFailurePolicy."""

    action: Literal["FailJob", "Ignore", "Count", "FailIndex"]
    on_pod_conditions: list[JsonObject] | None = None
    on_exit_codes: JsonObject | None = None


class PodFailurePolicy(Part):
    """What a failed pod does to its job."""

    rules: list[PodFailureRule]


class JobSpec(Part):
    """The spec of a job (batch/v1)."""

    parallelism: int = Field(default=1, ge=0)
    completions: int = Field(default=1, ge=0)
    completion_mode: Literal["Indexed", "NonIndexed"] = "Indexed"
    backoff_limit: int = Field(default=6, ge=0)
    active_deadline_seconds: int | None = None
    pod_replacement_policy: Literal["Failed", "TerminatingOrFailed"] | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    template: PodTemplate


class JobTemplate(Part):
    """The template of the jobs of a replicatedJob."""

    metadata: Metadata = Metadata()
    spec: JobSpec


class ReplicatedJob(Part):
    """Some jobs of one kind: for tpux, the slices."""

    name: str = Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    replicas: int = Field(default=1, ge=0)
    group_name: str | None = None
    template: JobTemplate


class FailureRule(Part):
    """A rule of a JobSet's failurePolicy."""

    name: str | None = None
    action: Literal[
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
    ]
    on_job_failure_reasons: list[Literal["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"]] = []
    target_replicated_jobs: list[str] = []


class FailurePolicy(Part):
    """What a failed job does to its JobSet."""

    max_restarts: int = Field(default=0, ge=0)
    restart_strategy: Literal["Recreate", "BlockingRecreate", "InPlaceRestart"] = "Recreate"
    rules: list[FailureRule] = []


class Network(Part):
    """The host names of the pods."""

    enable_dns_hostnames: Annotated[bool, Field(alias="enableDNSHostnames")] = True
    publish_not_ready_addresses: bool = True
    subdomain: str | None = None


class JobSetSpec(Part):
    """The spec of a JobSet."""

    suspend: bool = False
    ttl_seconds_after_finished: int | None = None
    network: Network = Network()
    failure_policy: FailurePolicy = FailurePolicy()
    success_policy: JsonObject | None = None
    coordinator: JsonObject | None = None
    managed_by: str | None = None
    replicated_jobs: list[ReplicatedJob] = Field(min_length=1)

    @property
    def chips(self) -> int:
        """How many chips all its pods need."""
        return sum(
            job.replicas
            * job.template.spec.parallelism
            * sum(int(each.resources.limits.get(CHIPS, 0)) for each in job.template.spec.template.spec.containers)
            for job in self.replicated_jobs
        )


class JobSetStatus(Part):
    """The status of a JobSet."""

    conditions: list[Condition] = []
    restarts: int = 0
    restarts_count_towards_max: int = 0
    terminal_state: str | None = None
    replicated_jobs_status: list[JsonObject] = []


class JobSet(KubeObject):
    """A JobSet."""

    spec: JobSetSpec
    status: JobSetStatus = JobSetStatus()


class QueueSpec(Open):
    """The spec of a LocalQueue or a ClusterQueue."""

    cluster_queue: str | None = None


class QueueStatus(Open):
    """The status of a LocalQueue or a ClusterQueue."""

    conditions: list[Condition] = []
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0


class LocalQueue(KubeObject):
    """A queue of a namespace."""

    spec: QueueSpec
    status: QueueStatus = QueueStatus()


class ClusterQueue(LocalQueue):
    """The queue with the quota."""


class WorkloadPriorityClass(KubeObject):
    """A priority."""

    value: int
    description: str | None = None


class WorkloadSpec(Part):
    """What Kueue queues."""

    active: bool = True
    queue_name: str
    priority: int = 0
    priority_class_ref: JsonObject | None = None
    priority_class_name: str | None = None
    priority_class_source: str | None = None
    pod_sets: list[JsonObject] = []


class WorkloadStatus(Part):
    """How it stands in the queue."""

    conditions: list[Condition] = []
    admission: JsonObject | None = None
    requeue_state: JsonObject | None = None


class Workload(KubeObject):
    """What Kueue queues: one for each JobSet."""

    spec: WorkloadSpec
    status: WorkloadStatus = WorkloadStatus()


class AccessReview(KubeObject):
    """The question whether the client may do something."""

    spec: JsonObject
    status: JsonObject | None = None


class Namespace(KubeObject):
    """A namespace."""

    spec: JsonObject = {}
    status: JsonObject = {"phase": "Active"}


@dataclass(frozen=True)
class Resource:
    """A resource of the API.

    Args:
        group: its API group; empty for the core group.
        versions: the versions that are served; the first is the one that objects are created with.
        plural: its name in paths.
        model: its objects.
        namespaced: whether it belongs to a namespace.
        short: kubectl's short names.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    model: type[KubeObject]
    namespaced: bool = True
    short: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Its kind."""
        return {"AccessReview": "SelfSubjectAccessReview"}.get(self.model.__name__, self.model.__name__)

    @property
    def full(self) -> str:
        """Its plural with its group, as messages name it."""
        return f"{self.plural}.{self.group}".rstrip(".")

    def api_version(self, version: str = "") -> str:
        """Return `GROUP/VERSION`."""
        return f"{self.group}/{version or self.versions[0]}".lstrip("/")


_KUEUE = ("v1beta2", "v1beta1")
RESOURCES = (
    Resource("", ("v1",), "namespaces", Namespace, namespaced=False, short=("ns",)),
    Resource("", ("v1",), "nodes", Node, namespaced=False, short=("no",)),
    Resource("", ("v1",), "pods", Pod, short=("po",)),
    Resource("", ("v1",), "events", Event, short=("ev",)),
    Resource("authorization.k8s.io", ("v1",), "selfsubjectaccessreviews", AccessReview, namespaced=False),
    Resource(JOBSET_GROUP, ("v1alpha2",), "jobsets", JobSet),
    Resource(KUEUE_GROUP, _KUEUE, "workloads", Workload, short=("wl",)),
    Resource(KUEUE_GROUP, _KUEUE, "localqueues", LocalQueue, short=("queue", "lq")),
    Resource(KUEUE_GROUP, _KUEUE, "clusterqueues", ClusterQueue, namespaced=False, short=("cq",)),
    Resource(KUEUE_GROUP, _KUEUE, "workloadpriorityclasses", WorkloadPriorityClass, namespaced=False),
)
BY_MODEL = {resource.model: resource for resource in RESOURCES}
