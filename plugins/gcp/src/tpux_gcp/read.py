"""The API's messages, read into plain data."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tpux_gcp.views import Endpoint, NodeView, Operation, QueuedView

if TYPE_CHECKING:
    from google.cloud import tpu_v2
    from google.longrunning import operations_pb2  # type: ignore[import-untyped]


def node(message: tpu_v2.Node) -> NodeView:
    """A node."""
    path = message.name.split("/")
    how = message.scheduling_config
    return NodeView(
        name=path[-1],
        zone=path[3],
        state=message.state.name,
        health=_unless_zero(message.health),
        accelerator=message.accelerator_type,
        version=message.runtime_version,
        labels=dict(message.labels),
        metadata=dict(message.metadata),
        endpoints=tuple(Endpoint(e.ip_address, e.access_config.external_ip) for e in message.network_endpoints),
        queued=message.queued_resource.split("/")[-1],
        pricing="spot" if how.spot else "preemptible" if how.preemptible else "ondemand",
        created=_when(message.create_time),
    )


def queued(message: tpu_v2.QueuedResource) -> QueuedView:
    """A queued resource; its labels are those that its nodes are to get."""
    path = message.name.split("/")
    specs = list(message.tpu.node_spec)
    first = specs[0].node if specs else None
    failed = "failed_data" in message.state and message.state.state.name == "FAILED"
    return QueuedView(
        name=path[-1],
        zone=path[3],
        state=message.state.state.name,
        nodes=tuple(name for spec in specs for name in _nodes(spec, path[-1])),
        labels=dict(first.labels) if first else {},
        accelerator=first.accelerator_type if first else "",
        version=first.runtime_version if first else "",
        pricing="spot" if "spot" in message else "ondemand",
        error=(message.state.failed_data.error.code, message.state.failed_data.error.message) if failed else None,
        initiator=_unless_zero(message.state.state_initiator),
        created=_when(message.create_time),
    )


def _nodes(spec: tpu_v2.QueuedResource.Tpu.NodeSpec, queued_id: str) -> list[str]:
    if "multislice_params" not in spec:
        return [spec.node_id or queued_id]
    prefix = spec.multislice_params.node_id_prefix or queued_id
    return [f"{prefix}-{number}" for number in range(spec.multislice_params.node_count)]


def operation(message: operations_pb2.Operation) -> Operation:
    """A long-running operation."""
    failed = message.HasField("error")
    return Operation(message.done, message.error.code if failed else 0, message.error.message if failed else "")


def _unless_zero(value: IntEnum) -> str:
    """The name of an enum's value; zero is the one that is not given."""
    return value.name if value.value else ""


def _when(time: object) -> str:
    """A time of the API (proto-plus gives a datetime) as ISO 8601; empty where it has none."""
    return str(time.isoformat(timespec="seconds")) if time is not None and hasattr(time, "isoformat") else ""
