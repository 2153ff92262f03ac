"""The methods of the TPU API v2, each a line in a table and a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpux_emulator.api.call import Call, Method
from tpux_emulator.api.guest import get_guest_attributes
from tpux_emulator.api.messages import Empty, Node, QueuedResource
from tpux_emulator.api.paging import page
from tpux_emulator.api.proto import JsonObject, Message
from tpux_emulator.cloud import nodes, operations, queue
from tpux_emulator.cloud.records import NodeRecord, OperationRecord, QueuedRecord
from tpux_emulator.errors import invalid, not_found

_LOCATION = "/v2/projects/{project}/locations/{location}"
_PAGES = frozenset({"pageSize", "pageToken"})
# Which regions and zones of a project: `locations/-`.
ANY = "-"


def _in_parent(call: Call, records: Iterable[NodeRecord | QueuedRecord | OperationRecord]) -> list[str]:
    if call.zone != ANY:
        call.cloud.offer.check_zone(call.zone)
    project = call.path["project"]
    return [
        record.name for record in records if record.name.split("/")[1] == project and call.zone in (ANY, record.zone)
    ]


def _list(call: Call, key: str, items: list[tuple[str, JsonObject]]) -> JsonObject:
    shown, token = page(call, items)
    answer: JsonObject = {}
    if shown:
        answer[key] = list(shown)
    if token:
        answer["nextPageToken"] = token
    return answer


def _create_node(call: Call) -> JsonObject:
    spec = call.body(Node, "node")
    return operations.show(nodes.create(call.cloud, call.parent, call.query.get("nodeId", ""), spec))


def _get_node(call: Call) -> Message:
    return call.cloud.show_node(nodes.get(call.cloud, call.name("nodes")))


def _list_nodes(call: Call) -> JsonObject:
    table = call.cloud.nodes
    names = _in_parent(call, table.values())
    show = call.cloud.show_node
    return _list(call, "nodes", [(n, show(table[n]).to_json(enum_numbers=call.enum_numbers)) for n in names])


def _patch_node(call: Call) -> JsonObject:
    mask = call.query.get("updateMask", "")
    return operations.show(nodes.patch(call.cloud, call.name("nodes"), mask, call.body(Node, "node")))


def _on_node(act: Callable[..., OperationRecord]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        call.body(Empty)
        return operations.show(act(call.cloud, call.name("nodes")))

    return run


def _once(call: Call, act: Callable[[], OperationRecord]) -> JsonObject:
    """The operation of a request id (AIP-155): what was asked twice is done once."""
    request_id = call.query.get("requestId", "")
    known = call.cloud.answered.get(f"{call.parent} {request_id}") if request_id else None
    if known is not None and known.operation in call.cloud.operations:
        return operations.show(call.cloud.operations[known.operation])
    operation = act()
    if request_id:
        call.cloud.answer(f"{call.parent} {request_id}", operation)
    return operations.show(operation)


def _create_queued(call: Call) -> JsonObject:
    spec = call.body(QueuedResource, "queued_resource")
    queued_id = call.query.get("queuedResourceId", "")
    return _once(call, lambda: queue.create(call.cloud, call.parent, queued_id, spec))


def _get_queued(call: Call) -> Message:
    return call.cloud.show_queued(queue.get(call.cloud, call.name("queuedResources")))


def _list_queued(call: Call) -> JsonObject:
    table = call.cloud.queued
    names = _in_parent(call, table.values())
    show = call.cloud.show_queued
    return _list(call, "queuedResources", [(n, show(table[n]).to_json(enum_numbers=call.enum_numbers)) for n in names])


def _delete_queued(call: Call) -> JsonObject:
    name, force = call.name("queuedResources"), call.flag("force")
    return _once(call, lambda: queue.delete(call.cloud, name, force=force))


def _reset_queued(call: Call) -> JsonObject:
    call.body(Empty)
    return operations.show(queue.reset(call.cloud, call.name("queuedResources")))


def _operation(call: Call) -> OperationRecord:
    name = call.name("operations")
    if name not in call.cloud.operations:
        raise not_found(name)
    return call.cloud.operations[name]


def _get_operation(call: Call) -> JsonObject:
    return operations.show(_operation(call))


def _list_operations(call: Call) -> JsonObject:
    table = call.cloud.operations
    return _list(call, "operations", [(n, operations.show(table[n])) for n in _in_parent(call, table.values())])


def _delete_operation(call: Call) -> Message:
    call.cloud.drop(_operation(call))
    return Empty()


def _cancel_operation(call: Call) -> Message:
    # Best effort, says the reference; the real service finishes what it has begun, and so does this.
    operation = _operation(call)
    operation.cancel_requested = True
    call.cloud.save(operation)
    return Empty()


def _location(project: str, zone: str) -> JsonObject:
    return {
        "name": f"projects/{project}/locations/{zone}",
        "locationId": zone,
        "labels": {"cloud.googleapis.com/region": zone.rpartition("-")[0]},
    }


def _get_location(call: Call) -> JsonObject:
    call.cloud.offer.check_zone(call.zone)
    return _location(call.path["project"], call.zone)


def _list_locations(call: Call) -> JsonObject:
    return _list(call, "locations", [(z, _location(call.path["project"], z)) for z in call.cloud.offer.zones])


def _zones(call: Call) -> list[str]:
    if call.zone == ANY:
        return list(call.cloud.offer.zones)
    call.cloud.offer.check_zone(call.zone)
    return [call.zone]


def _types(call: Call) -> list[tuple[str, JsonObject]]:
    offer, project = call.cloud.offer, call.path["project"]
    return [
        (
            f"{zone} {kind.partition('-')[0]} {int(kind.partition('-')[2]):06}",
            {
                "name": f"projects/{project}/locations/{zone}/acceleratorTypes/{kind}",
                "type": kind,
                "acceleratorConfigs": [offer.config(kind).to_json(enum_numbers=call.enum_numbers)],
            },
        )
        for zone in _zones(call)
        for kind in offer.types(zone)
    ]


def _versions(call: Call) -> list[tuple[str, JsonObject]]:
    project = call.path["project"]
    names = [(f"projects/{project}/locations/{zone}/runtimeVersions/{version}", version)
             for zone in _zones(call) for version in call.cloud.offer.runtime_versions]  # fmt: skip
    return [(name, {"name": name, "version": version}) for name, version in names]


def _catalogue(key: str, items: Callable[[Call], list[tuple[str, JsonObject]]]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        if call.query.get("filter") or call.query.get("orderBy"):
            raise invalid("The emulator knows no filter and no order for this list.", "filter")
        return _list(call, key, items(call))

    return run


def _one_of(key: str, items: Callable[[Call], list[tuple[str, JsonObject]]]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        name = call.name(key)
        for _, item in items(call):
            if item["name"] == name:
                return item
        raise not_found(name)

    return run


def _collection(key: str, items: Callable[[Call], list[tuple[str, JsonObject]]]) -> list[Method]:
    query = _PAGES | {"filter", "orderBy"}
    return [
        Method(f"{key}.list", "GET", f"{_LOCATION}/{key}", _catalogue(key, items), query),
        Method(f"{key}.get", "GET", f"{_LOCATION}/{key}/{{id}}", _one_of(key, items)),
    ]


_NODE, _QUEUED, _OPERATION = (f"{_LOCATION}/{each}/{{id}}" for each in ("nodes", "queuedResources", "operations"))
V2 = [
    Method("nodes.getGuestAttributes", "POST", f"{_NODE}:getGuestAttributes", get_guest_attributes),
    Method("nodes.stop", "POST", f"{_NODE}:stop", _on_node(nodes.stop)),
    Method("nodes.start", "POST", f"{_NODE}:start", _on_node(nodes.start)),
    Method("nodes.create", "POST", f"{_LOCATION}/nodes", _create_node, frozenset({"nodeId"})),
    Method("nodes.list", "GET", f"{_LOCATION}/nodes", _list_nodes, _PAGES),
    Method("nodes.get", "GET", _NODE, _get_node),
    Method("nodes.delete", "DELETE", _NODE, _on_node(nodes.delete)),
    Method("nodes.patch", "PATCH", _NODE, _patch_node, frozenset({"updateMask"})),
    Method("queuedResources.reset", "POST", f"{_QUEUED}:reset", _reset_queued),
    Method("queuedResources.create", "POST", f"{_LOCATION}/queuedResources", _create_queued,
           frozenset({"queuedResourceId", "requestId"})),
    Method("queuedResources.list", "GET", f"{_LOCATION}/queuedResources", _list_queued, _PAGES),
    Method("queuedResources.get", "GET", _QUEUED, _get_queued),
    Method("queuedResources.delete", "DELETE", _QUEUED, _delete_queued, frozenset({"force", "requestId"})),
    Method("operations.cancel", "POST", f"{_OPERATION}:cancel", _cancel_operation),
    Method("operations.list", "GET", f"{_LOCATION}/operations", _list_operations,
           _PAGES | {"filter", "returnPartialSuccess"}),
    Method("operations.get", "GET", _OPERATION, _get_operation),
    Method("operations.delete", "DELETE", _OPERATION, _delete_operation),
    *_collection("acceleratorTypes", _types),
    *_collection("runtimeVersions", _versions),
    Method("locations.list", "GET", "/v2/projects/{project}/locations", _list_locations,
           _PAGES | {"filter", "extraLocationTypes"}),
    Method("locations.get", "GET", _LOCATION, _get_location),
]  # fmt: skip
