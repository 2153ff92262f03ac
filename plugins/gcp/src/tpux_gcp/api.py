"""The TPU API v2, as the allocators and `tpux tpu` use it: every call is one request, and none waits for an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from tpux_gcp.api_retry import CREATE, call
from tpux_gcp.errors import CloudError, Problem
from tpux_gcp.project import credentials
from tpux_gcp.resource import Endpoint, NodeView, Operation, Place, QueuedView, Thing, of_node, of_queued

if TYPE_CHECKING:
    from google.cloud import tpu_v2
    from google.longrunning import operations_pb2  # type: ignore[import-untyped]

T = TypeVar("T")
Message = Mapping[str, object]
"""A message of the API, its fields in snake_case; proto-plus makes the real one of it."""
_of_thread = threading.local()


class Api:
    """The TPU API of one project.

    google-cloud-tpu is imported by the first call: 0.4 s and 58 MB that other jobs do not pay.

    Args:
        project: the project.
        endpoint: where the API is; empty for Google's own.

    All methods raise CloudError where the call did not succeed; 404 is None where something is looked at.
    """

    def __init__(self, project: str, endpoint: str = "") -> None:
        self.project = project
        self.endpoint = endpoint

    @property
    def client(self) -> tpu_v2.TpuClient:
        """The client of this thread: a `requests.Session` is not made to be shared."""
        clients: dict[str, tpu_v2.TpuClient] = _of_thread.__dict__.setdefault("clients", {})
        if self.endpoint not in clients:
            from google.cloud import tpu_v2

            options = {"api_endpoint": self.endpoint} if self.endpoint else None
            clients[self.endpoint] = tpu_v2.TpuClient(
                transport="rest", credentials=credentials(self.endpoint), client_options=options
            )
        return clients[self.endpoint]

    # --- looking ------------------------------------------------------------------------------

    def node(self, place: Place, name: str) -> NodeView | None:
        """A node."""
        found = self.node_message(place, name)
        return None if found is None else _read_node(found)

    def node_message(self, place: Place, name: str) -> tpu_v2.Node | None:
        """A node, as the API shows it."""
        return _if_there(lambda: call(self.client.get_node, {"name": place.node(name)}, self.project))

    def nodes(self, place: Place, unreachable: list[str] | None = None) -> list[NodeView]:
        """All nodes of a zone (`-`: of all zones), page after page.

        What the API could not reach makes it fail, unless there is a list to put the names in: a node that is
        not shown for that reason must never be taken for one that is gone.
        """
        pages = call(self.client.list_nodes, {"parent": place.parent, "page_size": 1000}, self.project)
        return [_read_node(message) for page in _pages(pages, self.project, unreachable) for message in page.nodes]

    def queued(self, place: Place, name: str) -> QueuedView | None:
        """A queued resource."""
        found = self.queued_message(place, name)
        return None if found is None else _read_queued(found)

    def queued_message(self, place: Place, name: str) -> tpu_v2.QueuedResource | None:
        """A queued resource, as the API shows it."""
        return _if_there(lambda: call(self.client.get_queued_resource, {"name": place.queued(name)}, self.project))

    def all_queued(self, place: Place, unreachable: list[str] | None = None) -> list[QueuedView]:
        """All queued resources of a zone, or of all of them, as `nodes`."""
        pages = call(self.client.list_queued_resources, {"parent": place.parent, "page_size": 1000}, self.project)
        found = _pages(pages, self.project, unreachable)
        return [_read_queued(message) for page in found for message in page.queued_resources]

    def operation(self, name: str) -> Operation | None:
        """A long-running operation; None where the API no longer knows it."""
        found = _if_there(lambda: call(self.client.get_operation, {"name": name}, self.project))
        return None if found is None else _read_operation(found)

    def accelerators(self, place: Place) -> list[str]:
        """The accelerator types of a zone."""
        pages = call(self.client.list_accelerator_types, {"parent": place.parent, "page_size": 1000}, self.project)
        return [message.type_ for page in _pages(pages, self.project) for message in page.accelerator_types]

    def versions(self, place: Place) -> list[str]:
        """The runtime versions of a zone."""
        pages = call(self.client.list_runtime_versions, {"parent": place.parent, "page_size": 1000}, self.project)
        return [message.version for page in _pages(pages, self.project) for message in page.runtime_versions]

    def zones(self) -> list[str]:
        """The zones that the project may use."""
        answer = call(self.client.list_locations, {"name": f"projects/{self.project}", "page_size": 1000}, self.project)
        return sorted(location.location_id for location in answer.locations)

    def host_keys(self, place: Place, name: str) -> list[dict[str, str]]:
        """What each worker of a READY node published as its host keys, by kind of key (guest attributes)."""
        request = {"name": place.node(name), "query_path": "hostkeys/"}
        answer = call(self.client.get_guest_attributes, request, self.project)
        return [
            {item.key: item.value for item in worker.query_value.items if item.namespace == "hostkeys"}
            for worker in answer.guest_attributes
        ]

    # --- doing: each begins something and gives the name of its operation ---------------------

    def create_node(self, place: Place, name: str, node: Message) -> str:
        """Begin to make a node."""
        request = {"parent": place.parent, "node_id": name, "node": node}
        return str(call(self.client.create_node, request, self.project, CREATE).operation.name)

    def create_queued(self, place: Place, name: str, resource: Message, request_id: str) -> str:
        """Put a request into the queue; one with an id that was sent before is not done twice (AIP-155)."""
        request = {"parent": place.parent, "queued_resource_id": name, "queued_resource": resource}
        request["request_id"] = request_id
        return str(call(self.client.create_queued_resource, request, self.project, CREATE).operation.name)

    def delete_node(self, place: Place, name: str) -> None:
        """Begin to delete a node; one that is not there, or is being deleted, is fine."""
        _towards_nothing(lambda: call(self.client.delete_node, {"name": place.node(name)}, self.project))

    def delete_queued(self, place: Place, name: str) -> None:
        """Begin to delete a queued resource and its nodes; fine where that is not possible just now."""
        request = {"name": place.queued(name), "force": True}
        _towards_nothing(lambda: call(self.client.delete_queued_resource, request, self.project))

    def set_metadata(self, place: Place, name: str, metadata: Mapping[str, str]) -> str:
        """Begin to replace a node's metadata."""
        node = {"name": place.node(name), "metadata": dict(metadata)}
        request = {"node": node, "update_mask": {"paths": ["metadata"]}}
        return str(call(self.client.update_node, request, self.project, CREATE).operation.name)

    def start_node(self, place: Place, name: str) -> str:
        """Begin to start a stopped node."""
        return str(call(self.client.start_node, {"name": place.node(name)}, self.project, CREATE).operation.name)

    def stop_node(self, place: Place, name: str) -> str:
        """Begin to stop a node of one worker."""
        return str(call(self.client.stop_node, {"name": place.node(name)}, self.project, CREATE).operation.name)


def look(api: Api, place: Place, name: str, *, queue: bool) -> Thing | None:
    """What the cloud holds under a name in a zone; None where it says that there is nothing.

    Args:
        api: whom to ask.
        place: where.
        name: the name of the queued resource or of the node.
        queue: whether to look for a queued resource first; a node of that name is found too.

    Raises:
        CloudError: it could not be seen. That is never a word that there is nothing.
    """
    if queue and (resource := api.queued(place, name)) is not None:
        return of_queued(resource, _slices(api, place, resource) if resource.state == "ACTIVE" else {})
    node = api.node(place, name)
    return None if node is None else of_node(node)


def _if_there(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except CloudError as error:
        if error.problem.kind == "missing":
            return None
        raise


def _towards_nothing(ask: Callable[[], object]) -> None:
    """Not there, being deleted, or not to be deleted in its present state: the next look tells which."""
    try:
        ask()
    except CloudError as error:
        if error.problem.kind not in {"missing", "busy", "exists"}:
            raise


class _Page(Protocol):
    @property
    def unreachable(self) -> Sequence[str]: ...


P = TypeVar("P", bound=_Page, covariant=True)


class _Pager(Protocol[P]):
    @property
    def pages(self) -> Iterator[P]: ...


def _pages(pager: _Pager[P], project: str, unreachable: list[str] | None = None) -> list[P]:
    """All pages of a pager of google-cloud-tpu: those after the first are calls too, and fail alike."""
    pages = call(lambda _, **__: list(pager.pages), None, project)
    missing = [name for page in pages for name in page.unreachable]
    if missing and unreachable is None:
        raise CloudError(Problem("transient", f"the TPU API could not reach {', '.join(missing)}"))
    if unreachable is not None:
        unreachable += missing
    return pages


def _read_node(message: tpu_v2.Node) -> NodeView:
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


def _read_queued(message: tpu_v2.QueuedResource) -> QueuedView:
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


def _read_operation(message: operations_pb2.Operation) -> Operation:
    """A long-running operation."""
    failed = message.HasField("error")
    return Operation(message.done, message.error.code if failed else 0, message.error.message if failed else "")


def _unless_zero(value: IntEnum) -> str:
    """The name of an enum's value; zero is the one that is not given."""
    return value.name if value.value else ""


def _when(time: object) -> str:
    """A time of the API (proto-plus gives a datetime) as ISO 8601; empty where it has none."""
    return str(time.isoformat(timespec="seconds")) if time is not None and hasattr(time, "isoformat") else ""


def _slices(api: Api, place: Place, resource: QueuedView) -> dict[str, NodeView]:
    """Its nodes by name: one call, however many slices there are."""
    if len(resource.nodes) == 1:
        node = api.node(place, resource.nodes[0])
        return {} if node is None else {node.name: node}
    return {node.name: node for node in api.nodes(place) if node.name in resource.nodes}


def _nodes(spec: tpu_v2.QueuedResource.Tpu.NodeSpec, queued_id: str) -> list[str]:
    if "multislice_params" not in spec:
        return [spec.node_id or queued_id]
    prefix = spec.multislice_params.node_id_prefix or queued_id
    return [f"{prefix}-{number}" for number in range(spec.multislice_params.node_count)]
