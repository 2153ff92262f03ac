"""Resources as the API shows them."""

from __future__ import annotations

from tpux_emulator.api.messages import (
    AccessConfig,
    ApiVersion,
    Empty,
    FailedData,
    NetworkConfig,
    NetworkEndpoint,
    Node,
    NodeState,
    QueuedResource,
    QueuedResourceState,
    QueuedState,
    SchedulingConfig,
    ServiceAccount,
)
from tpux_emulator.clock import timestamp
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord, WorkerRecord
from tpux_emulator.offer import Offer

# Before this a node has no machines yet, so no addresses.
_UNBORN = {NodeState.CREATING}
DEFAULT_SERVICE_ACCOUNT = "123456789012-compute@developer.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/cloud-platform"]


def node(record: NodeRecord, offer: Offer) -> Node:
    """A node with everything that the service adds to what was asked for."""
    spec = record.spec
    account = spec.service_account or ServiceAccount()
    network = spec.network_config or NetworkConfig(network="default", enable_external_ips=True)
    return spec.model_copy(
        update={
            "name": record.name,
            "accelerator_type": record.accelerator_type,
            "accelerator_config": offer.config(record.accelerator_type),
            "state": record.shown or record.state,
            "health": record.health if record.state is NodeState.READY else None,
            "id": str(record.uid),
            "create_time": timestamp(record.created),
            "api_version": ApiVersion.V2,
            "cidr_block": None,
            "network_config": network,
            "network_endpoints": [] if record.state in _UNBORN else [_endpoint(w, network) for w in record.workers],
            "scheduling_config": spec.scheduling_config or SchedulingConfig(),
            "service_account": ServiceAccount(
                email=account.email or DEFAULT_SERVICE_ACCOUNT, scope=account.scope or _SCOPES
            ),
            "queued_resource": record.queued_resource,
            "multislice_node": record.multislice,
            "health_description": None,
            "symptoms": None,
            "upcoming_maintenance": None,
            "protection_tier": None,
        }
    )


def _endpoint(worker: WorkerRecord, network: NetworkConfig) -> NetworkEndpoint:
    access = AccessConfig(external_ip=worker.external) if network.enable_external_ips else None
    # 8470 is the port of the TPU's own gRPC server, which nothing in the emulator listens on.
    return NetworkEndpoint(ip_address=worker.internal, port=8470, access_config=access)


def queued(record: QueuedRecord) -> QueuedResource:
    """A queued resource with its state; each state has a member of its own."""
    state = QueuedResourceState(state=record.state)
    if record.state is QueuedState.FAILED and record.error is not None:
        state.failed_data = FailedData(error=record.error)
    elif record.state is not QueuedState.WAITING_FOR_RESOURCES:
        setattr(state, f"{record.state.value.lower()}_data", Empty())
    if record.state in (QueuedState.SUSPENDING, QueuedState.SUSPENDED):
        state.state_initiator = record.initiator
    return record.spec.model_copy(
        update={"name": record.name, "create_time": timestamp(record.created), "state": state}
    )
