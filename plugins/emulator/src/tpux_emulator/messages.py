"""The messages of the TPU API v2 (discovery document tpu:v2, revision 20261001), with some fields of v2alpha1.

Clients may send the output-only fields, as `gcloud ... update` does; they are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, StrictBool

from tpux_emulator.clock import parse_timestamp
from tpux_emulator.errors import Status
from tpux_emulator.protojson import Message, ProtoEnum


def _is_timestamp(text: str) -> str:
    parse_timestamp(text)
    return text


Timestamp = Annotated[str, AfterValidator(_is_timestamp)]
Duration = Annotated[str, Field(pattern=r"^-?\d+(\.\d{1,9})?s$")]


class NodeState(ProtoEnum):
    """Node.State."""

    UNSPECIFIED = "STATE_UNSPECIFIED", 0
    CREATING = "CREATING", 1
    READY = "READY", 2
    RESTARTING = "RESTARTING", 3
    REIMAGING = "REIMAGING", 4
    DELETING = "DELETING", 5
    REPAIRING = "REPAIRING", 6
    STOPPED = "STOPPED", 8
    STOPPING = "STOPPING", 9
    STARTING = "STARTING", 10
    PREEMPTED = "PREEMPTED", 11
    TERMINATED = "TERMINATED", 12
    HIDING = "HIDING", 13
    HIDDEN = "HIDDEN", 14
    UNHIDING = "UNHIDING", 15
    UNKNOWN = "UNKNOWN", 16


class QueuedState(ProtoEnum):
    """QueuedResourceState.State."""

    UNSPECIFIED = "STATE_UNSPECIFIED", 0
    CREATING = "CREATING", 1
    ACCEPTED = "ACCEPTED", 2
    PROVISIONING = "PROVISIONING", 3
    FAILED = "FAILED", 4
    DELETING = "DELETING", 5
    ACTIVE = "ACTIVE", 6
    SUSPENDING = "SUSPENDING", 7
    SUSPENDED = "SUSPENDED", 8
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES", 9


class Initiator(ProtoEnum):
    """QueuedResourceState.StateInitiator."""

    UNSPECIFIED = "STATE_INITIATOR_UNSPECIFIED", 0
    USER = "USER", 1
    SERVICE = "SERVICE", 2


class Health(ProtoEnum):
    """Node.Health."""

    UNSPECIFIED = "HEALTH_UNSPECIFIED", 0
    HEALTHY = "HEALTHY", 1
    TIMEOUT = "TIMEOUT", 3
    UNHEALTHY_TENSORFLOW = "UNHEALTHY_TENSORFLOW", 4
    UNHEALTHY_MAINTENANCE = "UNHEALTHY_MAINTENANCE", 5


class ApiVersion(ProtoEnum):
    """Node.ApiVersion."""

    UNSPECIFIED = "API_VERSION_UNSPECIFIED", 0
    V1_ALPHA1 = "V1_ALPHA1", 1
    V1 = "V1", 2
    V2_ALPHA1 = "V2_ALPHA1", 3
    V2 = "V2", 4


class Generation(ProtoEnum):
    """AcceleratorConfig.Type."""

    UNSPECIFIED = "TYPE_UNSPECIFIED", 0
    V2 = "V2", 2
    V3 = "V3", 4
    V4 = "V4", 7
    V5LITE_POD = "V5LITE_POD", 9
    V5P = "V5P", 10
    V6E = "V6E", 11


class DiskMode(ProtoEnum):
    """AttachedDisk.DiskMode."""

    UNSPECIFIED = "DISK_MODE_UNSPECIFIED", 0
    READ_WRITE = "READ_WRITE", 1
    READ_ONLY = "READ_ONLY", 2


SymptomType = Literal[
    "LOW_MEMORY", "OUT_OF_MEMORY", "EXECUTE_TIMED_OUT", "MESH_BUILD_FAIL", "HBM_OUT_OF_MEMORY", "PROJECT_ABUSE"
]
"""Symptom.SymptomType."""


class Empty(Message):
    """A message without fields, such as Spot."""


class AcceleratorConfig(Message):
    """A generation and a topology, in place of an accelerator type."""

    type: Generation
    topology: str


class NetworkConfig(Message):
    """The network of the workers."""

    network: str | None = None
    subnetwork: str | None = None
    enable_external_ips: StrictBool | None = None
    can_ip_forward: StrictBool | None = None
    queue_count: int | None = None


class AccessConfig(Message):
    """The external address of a worker."""

    external_ip: str | None = None


class NetworkEndpoint(Message):
    """A worker's addresses."""

    ip_address: str | None = None
    port: int | None = None
    access_config: AccessConfig | None = None


class SchedulingConfig(Message):
    """The provisioning model of a node: on demand, spot, preemptible or reserved."""

    preemptible: StrictBool | None = None
    reserved: StrictBool | None = None
    spot: StrictBool | None = None


class ServiceAccount(Message):
    """The service account of the workers."""

    email: str | None = None
    scope: list[str] | None = None


class ShieldedInstanceConfig(Message):
    """Secure boot."""

    enable_secure_boot: StrictBool | None = None


class AttachedDisk(Message):
    """A data disk."""

    source_disk: str | None = None
    mode: DiskMode | None = None


class CustomerEncryptionKey(Message):
    """A customer-managed encryption key."""

    kms_key_name: str | None = None


class BootDiskConfig(Message):
    """The encryption of the boot disk."""

    customer_encryption_key: CustomerEncryptionKey | None = None


class Node(Message):
    """A TPU slice."""

    name: str | None = None
    description: str | None = None
    accelerator_type: str | None = None
    accelerator_config: AcceleratorConfig | None = None
    state: NodeState | None = None
    health: Health | None = None
    health_description: str | None = None
    runtime_version: str | None = None
    network_config: NetworkConfig | None = None
    network_configs: list[NetworkConfig] | None = None
    cidr_block: str | None = None
    service_account: ServiceAccount | None = None
    create_time: Timestamp | None = None
    scheduling_config: SchedulingConfig | None = None
    network_endpoints: list[NetworkEndpoint] | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    tags: list[str] | None = None
    id: str | None = None
    data_disks: list[AttachedDisk] | None = None
    api_version: ApiVersion | None = None
    symptoms: list[dict[str, JsonValue]] | None = None
    shielded_instance_config: ShieldedInstanceConfig | None = None
    queued_resource: str | None = None
    multislice_node: StrictBool | None = None
    upcoming_maintenance: dict[str, JsonValue] | None = None
    boot_disk_config: BootDiskConfig | None = None
    autocheckpoint_enabled: StrictBool | None = None  # of v2alpha1
    protection_tier: str | None = None


class MultisliceParams(Message):
    """Several nodes of one kind: PREFIX-0, PREFIX-1, ..."""

    node_count: int = Field(ge=1, le=256)
    node_id_prefix: str | None = None


class NodeSpec(Message):
    """One node, or several of one kind, of a queued resource."""

    parent: str
    node_id: str | None = None
    multislice_params: MultisliceParams | None = None
    multi_node_params: MultisliceParams | None = None  # its name in v2alpha1
    node: Node


class Tpu(Message):
    """The nodes of a queued resource."""

    node_spec: list[NodeSpec] = Field(min_length=1)


class Guaranteed(Message):
    """The guaranteed tier."""

    min_duration: Duration | None = None


class Interval(Message):
    """A time interval."""

    start_time: Timestamp | None = None
    end_time: Timestamp | None = None


class QueueingPolicy(Message):
    """When a queued resource may be provisioned."""

    valid_until_duration: Duration | None = None
    valid_until_time: Timestamp | None = None
    valid_after_duration: Duration | None = None
    valid_after_time: Timestamp | None = None
    valid_interval: Interval | None = None


class FailedData(Message):
    """Why a queued resource failed."""

    error: Status


class RunDuration(Message):
    """For how long the nodes of a queued resource run."""

    max_run_duration: Duration | None = None
    termination_time: Timestamp | None = None


ProvisioningModel = Literal["PROVISIONING_MODEL_UNSPECIFIED", "STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"]
"""QueuedResource.ProvisioningModel."""


class QueuedResourceState(Message):
    """The state of a queued resource."""

    state: QueuedState
    state_initiator: Initiator | None = None
    creating_data: Empty | None = None
    accepted_data: Empty | None = None
    provisioning_data: Empty | None = None
    failed_data: FailedData | None = None
    deleting_data: Empty | None = None
    active_data: Empty | None = None
    suspending_data: Empty | None = None
    suspended_data: Empty | None = None


class QueuedResource(Message):
    """A queued request for nodes."""

    name: str | None = None
    create_time: Timestamp | None = None
    tpu: Tpu | None = None
    spot: Empty | None = None
    guaranteed: Guaranteed | None = None
    queueing_policy: QueueingPolicy | None = None
    state: QueuedResourceState | None = None
    reservation_name: str | None = None
    provisioning_model: ProvisioningModel | None = None  # of v2alpha1
    run_duration: RunDuration | None = None  # of v2alpha1


class GetGuestAttributesRequest(Message):
    """A query for guest attributes; no worker id, or an empty one, means all workers."""

    query_path: str | None = None
    worker_ids: list[str] | None = None


class SshPublicKey(Message):
    """A public key of an OS Login profile (google.cloud.oslogin.common.SshPublicKey)."""

    key: str | None = None
    expiration_time_usec: str | None = None
    fingerprint: str | None = None
    name: str | None = None
