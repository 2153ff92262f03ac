"""Converts records to the messages that the API answers with."""

from __future__ import annotations

from tpux_emulator.clock import format_timestamp
from tpux_emulator.cloud.catalog import Catalog
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, QueuedRecord, WorkerRecord
from tpux_emulator.messages import (
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
from tpux_emulator.protojson import JsonObject

TPU_TYPES = "type.googleapis.com/google.cloud.tpu.v2."
MAINTENANCE_WINDOW = 4 * 3600.0
EMPTY_TYPE = "type.googleapis.com/google.protobuf.Empty"
DEFAULT_SERVICE_ACCOUNT = "123456789012-compute@developer.gserviceaccount.com"
_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/cloud-platform"]


def node(record: NodeRecord, catalog: Catalog, now: float = 0.0) -> Node:
    """Return a node: its spec, completed with the fields that the service fills in.

    Args:
        record: the node.
        catalog: the accelerator types.
        now: emulated Unix seconds.
    """
    spec = record.spec
    account = spec.service_account or ServiceAccount()
    network = spec.network_config or NetworkConfig(network="default", enable_external_ips=True)
    return spec.model_copy(
        update={
            "name": record.name,
            "accelerator_type": record.accelerator_type,
            "accelerator_config": catalog.config(record.accelerator_type),
            "state": record.faked_state or record.state,
            "health": record.health if record.state is NodeState.READY else None,
            "id": str(record.uid),
            "create_time": format_timestamp(record.created),
            "api_version": ApiVersion.V2,
            "cidr_block": None,
            "network_config": network,
            # A node that is being created has no machines yet, and so no addresses.
            "network_endpoints": []
            if record.state is NodeState.CREATING
            else [_endpoint(worker, network) for worker in record.workers],
            "scheduling_config": spec.scheduling_config or SchedulingConfig(),
            "service_account": ServiceAccount(
                email=account.email or DEFAULT_SERVICE_ACCOUNT, scope=account.scope or _SCOPES
            ),
            "queued_resource": record.queued_resource,
            "multislice_node": record.multislice,
            "health_description": None,
            "autocheckpoint_enabled": None,
            "symptoms": list(record.symptoms) or None,
            "upcoming_maintenance": None if record.maintenance is None else maintenance(record.maintenance, now=now),
            "protection_tier": None,
        }
    )


def maintenance(start: float, *, now: float) -> JsonObject:
    """Return a planned maintenance (`UpcomingMaintenance`).

    Args:
        start: when it begins.
        now: the time, of the same clock.
    """
    return {
        "type": "SCHEDULED",
        "maintenanceStatus": "ONGOING" if now >= start else "PENDING",
        "canReschedule": False,
        "windowStartTime": format_timestamp(start),
        "windowEndTime": format_timestamp(start + MAINTENANCE_WINDOW),
        "latestWindowStartTime": format_timestamp(start),
    }


def _endpoint(worker: WorkerRecord, network: NetworkConfig) -> NetworkEndpoint:
    access = AccessConfig(external_ip=worker.external) if network.enable_external_ips else None
    # 8470 is the port of the TPU's own gRPC server; nothing in the emulator listens on it.
    return NetworkEndpoint(ip_address=worker.internal, port=8470, access_config=access)


def queued(record: QueuedRecord) -> QueuedResource:
    """Return a queued resource with its state; the API has a field for each state (`active_data`)."""
    state = QueuedResourceState(state=record.state)
    if record.state is QueuedState.FAILED and record.error is not None:
        state.failed_data = FailedData(error=record.error)
    elif record.state is not QueuedState.WAITING_FOR_RESOURCES:
        setattr(state, f"{record.state.value.lower()}_data", Empty())
    if record.state in (QueuedState.SUSPENDING, QueuedState.SUSPENDED):
        state.state_initiator = record.initiator
    return record.spec.model_copy(
        update={
            "name": record.name,
            "create_time": format_timestamp(record.created),
            "state": state,
            "provisioning_model": None,
            "run_duration": None,
        }
    )


def operation(record: OperationRecord) -> JsonObject:
    """Return an operation as JSON; `done` is left out until it is true."""
    metadata: JsonObject = {
        "@type": TPU_TYPES + "OperationMetadata",
        "createTime": format_timestamp(record.created),
        "target": record.target,
        "verb": record.verb,
        "apiVersion": "v2",
    }
    if record.ended is not None:
        metadata["endTime"] = format_timestamp(record.ended)
    if record.cancel_requested:
        metadata["cancelRequested"] = True
    shown: JsonObject = {"name": record.name, "metadata": metadata}
    if record.ended is not None:
        shown["done"] = True
        if record.error is not None:
            shown["error"] = {"code": record.error.code, "message": record.error.message}
        else:
            shown["response"] = {"@type": record.response_type, **(record.response or {})}
    return shown
