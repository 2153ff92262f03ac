"""The API's methods on long-running operations: get, list, cancel, delete."""

from __future__ import annotations

from tpux_emulator.api.call import LOCATION, Call, Method
from tpux_emulator.api.paging import PAGE_PARAMETERS, list_resources
from tpux_emulator.cloud import views
from tpux_emulator.cloud.records import OperationRecord
from tpux_emulator.errors import not_found
from tpux_emulator.messages import Empty
from tpux_emulator.protojson import JsonObject, Message


def _find(call: Call) -> OperationRecord:
    name = call.name("operations")
    if name not in call.cloud.operations:
        raise not_found(name)
    return call.cloud.operations[name]


def _get(call: Call) -> JsonObject:
    return views.operation(_find(call))


def _list(call: Call) -> JsonObject:
    return list_resources(call, "operations", call.cloud.operations, views.operation)


def _delete(call: Call) -> Message:
    call.cloud.delete(_find(call))
    return Empty()


def _cancel(call: Call) -> Message:
    # Cancelling is best effort by the reference; the real service completes what it has begun, and so does this one.
    operation = _find(call)
    operation.cancel_requested = True
    call.cloud.save(operation)
    return Empty()


_OPERATIONS = f"{LOCATION}/operations"
_OPERATION = f"{_OPERATIONS}/{{id}}"
METHODS = [
    Method("operations.cancel", "POST", f"{_OPERATION}:cancel", _cancel),
    Method("operations.list", "GET", _OPERATIONS, _list, PAGE_PARAMETERS | {"filter", "returnPartialSuccess"}),
    Method("operations.get", "GET", _OPERATION, _get),
    Method("operations.delete", "DELETE", _OPERATION, _delete),
]
