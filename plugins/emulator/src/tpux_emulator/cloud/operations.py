"""Begins and completes long-running operations."""

from __future__ import annotations

import uuid

from tpux_emulator.cloud import views
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, QueuedRecord
from tpux_emulator.errors import Status


def begin(cloud: Cloud, verb: str, target: str) -> OperationRecord:
    """Create an operation that is not done yet.

    Args:
        cloud: the cloud.
        verb: create, delete, update, start, stop or reset.
        target: the full name of the resource.
    """
    now = cloud.clock.now()
    parent = "/".join(target.split("/")[:4])
    name = f"{parent}/operations/operation-{int(now * 1000)}-{uuid.uuid4()}"
    operation = OperationRecord(name=name, verb=verb, target=target, created=now)
    cloud.save(operation)
    return operation


def succeed(cloud: Cloud, name: str | None, resource: NodeRecord | QueuedRecord | None) -> None:
    """Complete an operation with the resource, or Empty, as its response, unless it is done already."""
    operation = cloud.operations.get(name or "")
    if operation is None or operation.ended is not None:
        return
    if isinstance(resource, NodeRecord):
        operation.response = views.node(resource, cloud.catalog).to_json()
        operation.response_type = f"{views.TPU_TYPES}Node"
    elif isinstance(resource, QueuedRecord):
        operation.response = views.queued(resource).to_json()
        operation.response_type = f"{views.TPU_TYPES}QueuedResource"
    else:
        operation.response, operation.response_type = {}, views.EMPTY_TYPE
    operation.ended = cloud.clock.now()
    cloud.save(operation)


def fail(cloud: Cloud, name: str | None, error: Status) -> None:
    """Complete an operation with an error, unless it is done already."""
    operation = cloud.operations.get(name or "")
    if operation is None or operation.ended is not None:
        return
    operation.error, operation.ended = error, cloud.clock.now()
    cloud.save(operation)
