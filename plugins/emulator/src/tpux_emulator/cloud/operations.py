"""Long-running operations."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tpux_emulator.api.proto import JsonObject
from tpux_emulator.clock import timestamp
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, QueuedRecord
from tpux_emulator.errors import Status

if TYPE_CHECKING:
    from tpux_emulator.cloud.cloud import Cloud

_TYPES = "type.googleapis.com/google.cloud.tpu.v2."
EMPTY = "type.googleapis.com/google.protobuf.Empty"


def begin(cloud: Cloud, verb: str, target: str) -> OperationRecord:
    """A new operation on a resource, not done yet."""
    now = cloud.clock.now()
    parent = "/".join(target.split("/")[:4])
    name = f"{parent}/operations/operation-{int(now * 1000)}-{uuid.uuid4()}"
    operation = OperationRecord(name=name, verb=verb, target=target, created=now)
    cloud.save(operation)
    return operation


def succeed(cloud: Cloud, name: str | None, resource: NodeRecord | QueuedRecord | None) -> None:
    """End an operation well, with the resource as its response, or Empty."""
    operation = cloud.operations.get(name or "")
    if operation is None or operation.ended is not None:
        return
    if isinstance(resource, NodeRecord):
        operation.response, operation.response_type = cloud.show_node(resource).to_json(), _TYPES + "Node"
    elif isinstance(resource, QueuedRecord):
        operation.response, operation.response_type = cloud.show_queued(resource).to_json(), _TYPES + "QueuedResource"
    else:
        operation.response, operation.response_type = {}, EMPTY
    operation.ended = cloud.clock.now()
    cloud.save(operation)


def fail(cloud: Cloud, name: str | None, error: Status) -> None:
    """End an operation with an error."""
    operation = cloud.operations.get(name or "")
    if operation is None or operation.ended is not None:
        return
    operation.error, operation.ended = error, cloud.clock.now()
    cloud.save(operation)


def show(operation: OperationRecord) -> JsonObject:
    """The operation as the API writes it; `done` is left out until it is true."""
    metadata: JsonObject = {
        "@type": _TYPES + "OperationMetadata",
        "createTime": timestamp(operation.created),
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": "v2",
    }
    if operation.ended is not None:
        metadata["endTime"] = timestamp(operation.ended)
    if operation.cancel_requested:
        metadata["cancelRequested"] = True
    shown: JsonObject = {"name": operation.name, "metadata": metadata}
    if operation.ended is not None:
        shown["done"] = True
        if operation.error is not None:
            shown["error"] = {"code": operation.error.code, "message": operation.error.message}
        else:
            shown["response"] = {"@type": operation.response_type, **(operation.response or {})}
    return shown
