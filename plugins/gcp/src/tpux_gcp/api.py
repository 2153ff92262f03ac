"""The TPU API v2, with its timeouts and retries, and the pause of a minute after the project was throttled.

Each method of `Api` is one request (a list: one per page); none waits for an operation to end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from tpux_gcp.credentials import Place, credentials
from tpux_gcp.errors import CloudError, Problem, from_failed_call
from tpux_gcp.resource import (
    Location,
    Node,
    Operation,
    QueuedResource,
    TpuResource,
    parse_node,
    parse_operation,
    parse_queued_resource,
)

if TYPE_CHECKING:
    from google.api_core.operation import Operation as LongRunningOperation
    from google.api_core.retry import Retry
    from google.cloud import tpu_v2

T = TypeVar("T")
Message = Mapping[str, object]
"""An API message with its fields in snake_case, as proto-plus accepts it."""
# Real seconds. A step must not block one of the supervisor's threads: the next step repeats an unanswered call.
TIMEOUT = 15.0
MUTATION_TIMEOUT = 30.0
RETRY_DEADLINE = 3.0
THROTTLE_PAUSE = 60.0

_log = logging.getLogger(__name__)
_thread = threading.local()
_throttled_until: dict[str, float] = {}
_lock = threading.Lock()


class Api:
    """The TPU API of one project.

    google-cloud-tpu is imported by the first call: 0.4 s and 58 MB that jobs without a TPU do not pay.
    Every method raises CloudError if the call fails; getters return None if the API answers that the resource
    does not exist.

    Args:
        place: the project, the API's address and the credentials.

    Raises:
        InvalidConfigError: no project is set anywhere.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.project = place.required_project()

    @property
    def client(self) -> tpu_v2.TpuClient:
        """This thread's client: a `requests.Session` is not thread-safe."""
        clients: dict[Place, tpu_v2.TpuClient] = _thread.__dict__.setdefault("clients", {})
        key = replace(self.place, project="", zone="")
        if key not in clients:
            from google.cloud import tpu_v2

            options = {"api_endpoint": self.place.endpoint}
            clients[key] = tpu_v2.TpuClient(
                transport="rest", credentials=credentials(self.place), client_options=options
            )
        return clients[key]

    # --- reading --------------------------------------------------------------------------------

    def tpu(self, location: Location, name: str, *, queue: bool) -> TpuResource | None:
        """Get what exists under a name.

        Args:
            location: the zone.
            name: the name of the queued resource or of the node.
            queue: look for a queued resource first, then for a node.
        """
        if queue and (queued := self.queued_resource(location, name)) is not None:
            nodes = self._nodes_of(location, queued) if queued.state == "ACTIVE" else []
            return TpuResource.from_queued(queued, {node.name: node for node in nodes})
        node = self.node(location, name)
        return None if node is None else TpuResource.from_node(node)

    def leftover_nodes(
        self, location: Location, name: str, owners: Sequence[Mapping[str, str]], slices: int = 0
    ) -> TpuResource | None:
        """Get the nodes that remain of a multislice whose queued resource no longer exists.

        The API deletes a FAILED or SUSPENDED queued resource although it has nodes.

        Args:
            location: the zone.
            name: the name of the queued resource.
            owners: the labels of the job, and of those from which it has taken over the nodes: they carry one of these.
            slices: how many nodes it had. If the list has none of them, each is asked for: the list may be incomplete.
        """

        def remains(node: Node) -> bool:
            owned = any(labels and labels.items() <= node.labels.items() for labels in owners)
            return owned or node.queued_resource == name

        nodes = [node for node in self.nodes(location) if remains(node)]
        if not nodes:
            asked = (self.node(location, f"{name}-{number}") for number in range(slices))
            nodes = [node for node in asked if node is not None and remains(node)]
        return TpuResource.from_leftover_nodes(name, nodes) if nodes else None

    def node(self, location: Location, name: str) -> Node | None:
        """Get a node."""
        message = self.node_message(location, name)
        return None if message is None else parse_node(message)

    def node_message(self, location: Location, name: str) -> tpu_v2.Node | None:
        """Get a node as the API returns it."""
        return _none_if_missing(lambda: invoke(self.client.get_node, {"name": location.node(name)}, self.project))

    def nodes(self, location: Location, unreachable: list[str] | None = None) -> list[Node]:
        """List the nodes of a zone, or of all zones (`-`).

        Args:
            location: the zone.
            unreachable: receives the locations that the API could not reach. Without it they are an error: a node
                that is missing from the list for that reason must not be mistaken for a deleted one.
        """
        pages = self._pages(self._list(self.client.list_nodes, location), unreachable)
        return [parse_node(message) for page in pages for message in page.nodes]

    def queued_resource(self, location: Location, name: str) -> QueuedResource | None:
        """Get a queued resource."""
        message = self.queued_resource_message(location, name)
        return None if message is None else parse_queued_resource(message)

    def queued_resource_message(self, location: Location, name: str) -> tpu_v2.QueuedResource | None:
        """Get a queued resource as the API returns it."""
        request = {"name": location.queued_resource(name)}
        return _none_if_missing(lambda: invoke(self.client.get_queued_resource, request, self.project))

    def queued_resources(self, location: Location, unreachable: list[str] | None = None) -> list[QueuedResource]:
        """List the queued resources of a zone, or of all zones; arguments as for `nodes`."""
        pages = self._pages(self._list(self.client.list_queued_resources, location), unreachable)
        return [parse_queued_resource(message) for page in pages for message in page.queued_resources]

    def operation(self, name: str) -> Operation | None:
        """Get a long-running operation; the API forgets old ones."""
        message = _none_if_missing(lambda: invoke(self.client.get_operation, {"name": name}, self.project))
        return None if message is None else parse_operation(message)

    def running_creation(self, location: Location, target: str) -> str:
        """Return the name of the running operation that creates a resource, empty if the API lists none.

        Args:
            location: the zone.
            target: the full name of the resource.
        """
        from google.cloud import tpu_v2

        request: dict[str, object] = {"name": location.parent, "page_size": 1000}
        while True:
            page = invoke(self.client.list_operations, request, self.project)
            for message in page.operations:
                metadata = tpu_v2.OperationMetadata.deserialize(message.metadata.value)
                if not message.done and metadata.verb == "create" and metadata.target == target:
                    return str(message.name)
            if not page.next_page_token:
                return ""
            request["page_token"] = page.next_page_token

    def accelerator_types(self, location: Location) -> list[str]:
        """List the accelerator types of a zone."""
        pages = self._pages(self._list(self.client.list_accelerator_types, location))
        return [message.type_ for page in pages for message in page.accelerator_types]

    def runtime_versions(self, location: Location) -> list[str]:
        """List the runtime versions of a zone."""
        pages = self._pages(self._list(self.client.list_runtime_versions, location))
        return [message.version for page in pages for message in page.runtime_versions]

    def zones(self) -> list[str]:
        """List the zones that the project may use."""
        request = {"name": f"projects/{self.project}", "page_size": 1000}
        answer = invoke(self.client.list_locations, request, self.project)
        return sorted(location.location_id for location in answer.locations)

    def guest_attributes(self, location: Location, name: str) -> list[dict[tuple[str, str], str]]:
        """Get what each worker of a READY node has published, by namespace and key: its host keys and its host name."""
        answer = invoke(self.client.get_guest_attributes, {"name": location.node(name)}, self.project)
        return [
            {(item.namespace, item.key): item.value for item in worker.query_value.items}
            for worker in answer.guest_attributes
        ]

    # --- changing: each starts an operation; create, update, start and stop return its name -----

    def create_node(self, location: Location, name: str, node: Message) -> str:
        """Start to create a node."""
        return self._mutate(self.client.create_node, {"parent": location.parent, "node_id": name, "node": node})

    def create_queued_resource(self, location: Location, name: str, message: Message, request_id: str) -> str:
        """Start to create a queued resource; the API ignores a repeated `request_id` (AIP-155)."""
        request = {"parent": location.parent, "queued_resource_id": name, "queued_resource": message}
        return self._mutate(self.client.create_queued_resource, {**request, "request_id": request_id})

    def update_node(
        self, location: Location, name: str, field: Literal["labels", "metadata"], values: Mapping[str, str]
    ) -> str:
        """Start to replace a node's labels or its metadata."""
        node = {"name": location.node(name), field: dict(values)}
        return self._mutate(self.client.update_node, {"node": node, "update_mask": {"paths": [field]}})

    def start_node(self, location: Location, name: str) -> str:
        """Start to start a stopped node."""
        return self._mutate(self.client.start_node, {"name": location.node(name)})

    def stop_node(self, location: Location, name: str) -> str:
        """Start to stop a node with one worker."""
        return self._mutate(self.client.stop_node, {"name": location.node(name)})

    def delete(self, location: Location, resource: TpuResource) -> None:
        """Start to delete a queued resource with its nodes, or the nodes if it has none.

        Not an error if it does not exist, is being deleted, or cannot be deleted in its current state: the
        caller polls until it is gone.
        """
        try:
            if name := resource.queued_resource:
                request: Message = {"name": location.queued_resource(name), "force": True}
                invoke(self.client.delete_queued_resource, request, self.project)
                return
        except CloudError as error:
            if error.problem.kind in {"busy", "exists"}:
                return
            if error.problem.kind != "missing":
                raise
        # Not created by a queued resource, or that one is gone.
        for node in resource.nodes:
            try:
                invoke(self.client.delete_node, {"name": location.node(node.name)}, self.project)
            except CloudError as error:
                if error.problem.kind not in {"missing", "busy", "exists"}:
                    raise

    def _mutate(self, method: Callable[..., LongRunningOperation], request: Message) -> str:
        return str(invoke(method, request, self.project, mutation=True).operation.name)

    def _nodes_of(self, location: Location, queued: QueuedResource) -> list[Node]:
        """Get the existing nodes of a queued resource, with one call if the list has them all: it may be incomplete."""
        listed = self.nodes(location) if len(queued.node_ids) > 1 else []
        found = [node for node in listed if node.name in queued.node_ids]
        unlisted = set(queued.node_ids) - {node.name for node in found}
        asked = (self.node(location, name) for name in sorted(unlisted))
        return [*found, *(node for node in asked if node is not None)]

    def _list(self, method: Callable[..., T], location: Location) -> T:
        return invoke(method, {"parent": location.parent, "page_size": 1000}, self.project)

    def _pages(self, pager: _Pager[P], unreachable: list[str] | None = None) -> list[P]:
        """Get all pages; those after the first are calls too, and fail in the same ways.

        Raises:
            CloudError: a call failed; without `unreachable`, also if the API could not reach a location.
        """
        pages = invoke(lambda _, **__: list(pager.pages), None, self.project)
        missing = [name for page in pages for name in page.unreachable]
        if missing and unreachable is None:
            raise CloudError(Problem("transient", f"the TPU API could not reach {', '.join(missing)}"))
        if unreachable is not None:
            unreachable += missing
        return pages


class _Page(Protocol):
    @property
    def unreachable(self) -> Sequence[str]: ...


P = TypeVar("P", bound=_Page, covariant=True)


class _Pager(Protocol[P]):
    @property
    def pages(self) -> Iterator[P]: ...


def _none_if_missing(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except CloudError as error:
        if error.problem.kind == "missing":
            return None
        raise


def invoke(method: Callable[..., T], request: object, project: str, *, mutation: bool = False) -> T:
    """Call a method of google-cloud-tpu, which by default neither retries nor times out.

    Args:
        method: the method.
        request: what is sent.
        project: the project, of which all calls pause together.
        mutation: it creates or changes something: not repeated blindly, the next step checks whether it took effect.

    Raises:
        CloudError: the call failed. For a minute after a `throttled` error, every call for that project fails
            with another one, without a request being sent.
    """
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    _check_throttled(project)
    try:
        return method(request, retry=None if mutation else _retry(), timeout=MUTATION_TIMEOUT if mutation else TIMEOUT)
    except (RetryError, GoogleAPICallError, GoogleAuthError, RequestException) as error:
        problem = from_failed_call(error, project)
        if problem.kind == "throttled":
            _mark_throttled(project)
        raise CloudError(problem) from error


def _retry() -> Retry:
    from google.api_core.exceptions import BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type
    from requests.exceptions import ConnectionError as NoConnection

    # Timeouts are not retried: the step has taken long enough, and the next one repeats the call.
    transient = if_exception_type(BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable, NoConnection)
    return Retry(predicate=transient, initial=0.25, maximum=4.0, multiplier=2.0, timeout=RETRY_DEADLINE)


def _check_throttled(project: str) -> None:
    with _lock:
        throttled = time.monotonic() < _throttled_until.get(project, 0.0)
    if throttled:
        raise CloudError(Problem("throttled", f"project {project} sends too many requests per minute"))


def _mark_throttled(project: str) -> None:
    from tpux.api.machines import clock_rate

    _log.info("project %s is throttled", project)
    with _lock:
        _throttled_until[project] = time.monotonic() + THROTTLE_PAUSE / clock_rate()
