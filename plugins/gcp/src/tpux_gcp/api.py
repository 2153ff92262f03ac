"""The TPU API v2, with its timeouts and retries, and the pause of a minute after the project was throttled.

Each method of `Api` is one request (a list: one per page); none waits for an operation to end.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from tpux_gcp.credentials import Place, credentials, forget, is_emulator
from tpux_gcp.errors import AnswerError, CloudError, Problem, from_failed_call
from tpux_gcp.messages import (
    Message,
    UnreadableError,
    creates,
    parse_node,
    parse_operation,
    parse_queued_resource,
    part,
    parts,
    text,
    version_of,
)
from tpux_gcp.resource import Location, Node, Operation, QueuedResource, TpuResource

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

T = TypeVar("T")
# Real seconds. A step must not block one of the supervisor's threads: the next step repeats an unanswered call.
TIMEOUT = 15.0
MUTATION_TIMEOUT = 30.0
RETRY_DEADLINE = 3.0
THROTTLE_PAUSE = 60.0
_REPEATED = frozenset({500, 502, 503, 504})
_SEGMENT = re.compile(r"(?!\.+$)[-\w.~:]+", re.ASCII)
"""Of a path: what others mean in a URL, such as `..` and `?`, is no name."""

_log = logging.getLogger(__name__)
_thread = threading.local()
_throttled_until: dict[str, float] = {}
_lock = threading.Lock()


class Api:
    """The TPU API of one project.

    It is JSON over google-auth's session, not google-cloud-tpu, which refuses what its version does not know: a state
    of a colleague's node, or the type of an operation's metadata. Here it passes through.
    Every method raises CloudError if the call fails; getters return None if the API answers that the resource
    does not exist.

    Args:
        place: the project, the API's address and the credentials.

    Attributes:
        unreadable: how many items of lists were left out, since they do not say what they describe.

    Raises:
        InvalidConfigError: no project is set anywhere.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.project = place.required_project()
        self.unreadable = 0

    def _send(
        self, verb: str, path: str, *, mutation: bool = False, body: Message | None = None, **query: str
    ) -> Message:
        """Make one call; `query` is without what is empty."""
        return invoke(self.place, verb, path, {k: v for k, v in query.items() if v}, body, mutation=mutation)

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
        return None if message is None else _readable(parse_node, message)

    def node_message(self, location: Location, name: str) -> Message | None:
        """Get a node as the API returns it."""
        return _none_if_missing(lambda: self._send("GET", location.node(name)))

    def nodes(self, location: Location, unreachable: list[str] | None = None) -> list[Node]:
        """List the nodes of a zone, or of all zones (`-`).

        Args:
            location: the zone.
            unreachable: receives the locations that the API could not reach. Without it they are an error: a node
                that is missing from the list for that reason must not be mistaken for a deleted one.
        """
        return self._readable_items(parse_node, self._list(f"{location.parent}/nodes", "nodes", unreachable))

    def queued_resource(self, location: Location, name: str) -> QueuedResource | None:
        """Get a queued resource."""
        message = self.queued_resource_message(location, name)
        return None if message is None else _readable(parse_queued_resource, message)

    def queued_resource_message(self, location: Location, name: str) -> Message | None:
        """Get a queued resource as the API returns it."""
        return _none_if_missing(lambda: self._send("GET", location.queued_resource(name)))

    def queued_resources(self, location: Location, unreachable: list[str] | None = None) -> list[QueuedResource]:
        """List the queued resources of a zone, or of all zones; arguments as for `nodes`."""
        messages = self._list(f"{location.parent}/queuedResources", "queuedResources", unreachable)
        return self._readable_items(parse_queued_resource, messages)

    def operation(self, name: str) -> Operation | None:
        """Get a long-running operation; the API forgets old ones."""
        message = _none_if_missing(lambda: self._send("GET", name))
        return None if message is None else parse_operation(message)

    def running_creation(self, location: Location, target: str) -> str:
        """Return the name of the running operation that creates a resource, empty if the API lists none.

        Args:
            location: the zone.
            target: the full name of the resource.
        """
        running = [
            message
            for message in self._list(f"{location.parent}/operations", "operations")
            if message.get("done") is not True and creates(message, target)
        ]
        return text(running[0], "name") if running else ""

    def accelerator_types(self, location: Location) -> list[str]:
        """List the accelerator types of a zone."""
        return self._names(f"{location.parent}/acceleratorTypes", "acceleratorTypes", "type")

    def runtime_versions(self, location: Location) -> list[str]:
        """List the runtime versions of a zone."""
        return self._names(f"{location.parent}/runtimeVersions", "runtimeVersions", "version")

    def zones(self) -> list[str]:
        """List the zones that the project may use."""
        return sorted(self._names(f"projects/{self.project}/locations", "locations", "locationId"))

    def guest_attributes(self, location: Location, name: str) -> list[dict[tuple[str, str], str]]:
        """Get what each worker of a READY node has published, by namespace and key: its host keys and its host name."""
        answer = self._send("POST", f"{location.node(name)}:getGuestAttributes", body={})
        return [
            {
                (text(item, "namespace"), text(item, "key")): text(item, "value")
                for item in parts(part(worker, "queryValue"), "items")
            }
            for worker in parts(answer, "guestAttributes")
        ]

    # --- changing: each starts an operation; create, update, start and stop return its name -----

    def create_node(self, location: Location, name: str, node: Message) -> str:
        """Start to create a node."""
        return self._mutate("POST", f"{location.parent}/nodes", body=node, nodeId=name)

    def create_queued_resource(self, location: Location, name: str, message: Message, request_id: str) -> str:
        """Start to create a queued resource; the API ignores a repeated `request_id` (AIP-155)."""
        path = f"{location.parent}/queuedResources"
        return self._mutate("POST", path, body=message, queuedResourceId=name, requestId=request_id)

    def update_node(
        self, location: Location, name: str, field: Literal["labels", "metadata"], values: Mapping[str, str]
    ) -> str:
        """Start to replace a node's labels or its metadata."""
        return self._mutate("PATCH", location.node(name), body={field: dict(values)}, updateMask=field)

    def may_update_node(self, location: Location, name: str) -> bool:
        """Return whether the account may change a node. Nothing changes: the API lets nobody change a node's name."""
        try:
            self._send("PATCH", location.node(name), body={"name": location.node(name)}, updateMask="name")
        except CloudError as error:
            if error.problem.kind == "forbidden":
                return False
            if error.problem.kind not in {"config", "busy"}:
                raise
        return True

    def start_node(self, location: Location, name: str) -> str:
        """Start to start a stopped node."""
        return self._mutate("POST", f"{location.node(name)}:start", body={})

    def stop_node(self, location: Location, name: str) -> str:
        """Start to stop a node with one worker."""
        return self._mutate("POST", f"{location.node(name)}:stop", body={})

    def delete(self, location: Location, resource: TpuResource) -> None:
        """Start to delete a queued resource with its nodes, or the nodes if it has none.

        Not an error if it does not exist, is being deleted, or cannot be deleted in its current state: the
        caller polls until it is gone.
        """
        try:
            if name := resource.queued_resource:
                self._send("DELETE", location.queued_resource(name), force="true")
                return
        except CloudError as error:
            if error.problem.kind in {"busy", "exists"}:
                return
            if error.problem.kind != "missing":
                raise
        # Not created by a queued resource, or that one is gone.
        for node in resource.nodes:
            try:
                self._send("DELETE", location.node(node.name))
            except CloudError as error:
                if error.problem.kind not in {"missing", "busy", "exists"}:
                    raise

    def _mutate(self, verb: str, path: str, *, body: Message, **query: str) -> str:
        """Start an operation and return its name. An answer without a name says nothing of what was done."""
        answer = self._send(verb, path, mutation=True, body=body, **query)
        if not (name := text(answer, "name")):
            message = f"the TPU API gave an unexpected answer, which names no operation: {sorted(answer)}"
            raise CloudError(Problem("transient", message, unanswered=True))
        return name

    def _nodes_of(self, location: Location, queued: QueuedResource) -> list[Node]:
        """Get the existing nodes of a queued resource, with one call if the list has them all: it may be incomplete."""
        listed = self.nodes(location) if len(queued.node_ids) > 1 else []
        found = [node for node in listed if node.name in queued.node_ids]
        unlisted = set(queued.node_ids) - {node.name for node in found}
        asked = (self.node(location, name) for name in sorted(unlisted))
        return [*found, *(node for node in asked if node is not None)]

    def _names(self, path: str, collection: str, field: str) -> list[str]:
        return [name for message in self._list(path, collection) if (name := text(message, field))]

    def _list(self, path: str, collection: str, unreachable: list[str] | None = None) -> list[Message]:
        """Get the items on all pages; those after the first are calls too, and fail in the same ways.

        Raises:
            CloudError: a call failed; without `unreachable`, also if the API could not reach a location.
        """
        found: list[Message] = []
        missing: list[str] = []
        token, tokens = "", set[str]()
        while token not in tokens:
            tokens.add(token)
            page = self._send("GET", path, pageSize="1000", pageToken=token)
            found += parts(page, collection)
            items, locations = page.get(collection), page.get("unreachable")
            self.unreadable += sum(not isinstance(each, dict) for each in items) if isinstance(items, list) else 0
            missing += map(str, locations) if isinstance(locations, list) else []
            if not (token := text(page, "nextPageToken")):
                break
        else:
            raise CloudError(Problem("transient", f"the TPU API repeats a page of {collection}"))
        if missing and unreachable is None:
            raise CloudError(Problem("transient", f"the TPU API could not reach {', '.join(missing)}"))
        if unreachable is not None:
            unreachable += missing
        return found

    def _readable_items(self, parse: Callable[[Message], T], messages: Sequence[Message]) -> list[T]:
        """Return the items that say what they describe. Others cannot be the job's: its TPUs have names."""
        found = []
        for message in messages:
            try:
                found.append(parse(message))
            except UnreadableError as error:
                self.unreadable += 1
                _log.info("left out of a list: %s", error)
        return found


def _readable(parse: Callable[[Message], T], message: Message) -> T:
    try:
        return parse(message)
    except UnreadableError as error:
        raise CloudError(Problem("transient", f"the TPU API gave an unexpected answer: {error}")) from error


def _none_if_missing(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except CloudError as error:
        if error.problem.kind == "missing":
            return None
        raise


def invoke(
    place: Place, verb: str, path: str, query: Mapping[str, str], body: Message | None, *, mutation: bool = False
) -> Message:
    """Make one call of the API, with a timeout, and repeat it for some seconds if it changes nothing.

    Args:
        place: the project, of which all calls pause together, the address and the credentials.
        verb: of HTTP.
        path: the resource, below the version.
        query: the query's parameters.
        body: the message that is sent, None for none.
        mutation: it creates or changes something: not repeated blindly, the next step checks whether it took effect.

    Raises:
        CloudError: the call failed. For a minute after a `throttled` error, every call for that project fails
            with another one, without a request being sent.
    """
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    if not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise CloudError(Problem("config", f"invalid name {path!r}", "names have letters, digits and hyphens"))
    _check_throttled(place.project)

    def send() -> Message:
        options = {"params": query, "json": body, "timeout": MUTATION_TIMEOUT if mutation else TIMEOUT}
        # The API redirects nobody; who does wants a login or a proxy.
        answer = _session(place).request(
            verb, f"{place.endpoint}/{version_of(body or {})}/{path}", allow_redirects=False, **options
        )  # type: ignore[no-untyped-call]
        return _message(answer.status_code, answer.text)

    try:
        return send() if mutation else _repeat(send)
    except (AnswerError, GoogleAuthError, RequestException, HTTPError, OSError) as error:
        problem = from_failed_call(error, place.project)
        if problem.kind == "throttled":
            _mark_throttled(place.project)
        if problem.kind == "auth":
            forget(place)
        raise CloudError(problem) from error


def _message(status: int, body: str) -> Message:
    """Return the message of an answer.

    Raises:
        AnswerError: it is an error, or not the API's.
    """
    try:
        message = json.loads(body)
    except ValueError:
        message = None
    if status == 200 and isinstance(message, dict):
        return message
    raise AnswerError(status, body)


def _session(place: Place) -> AuthorizedSession:
    """Return this thread's session: a `requests.Session` is not thread-safe."""
    from google.auth.transport.requests import AuthorizedSession

    sessions: dict[Place, AuthorizedSession] = _thread.__dict__.setdefault("sessions", {})
    key, current = replace(place, project="", zone=""), credentials(place)
    if key not in sessions or (current is not sessions[key].credentials and not is_emulator(place.endpoint)):
        sessions[key] = AuthorizedSession(current)  # type: ignore[no-untyped-call]
    return sessions[key]


def _repeat(send: Callable[[], Message]) -> Message:
    from requests.exceptions import ConnectionError as NoConnection
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

    def transient(error: BaseException) -> bool:
        return isinstance(error, NoConnection) or (isinstance(error, AnswerError) and error.status in _REPEATED)

    # Timeouts are not retried: the step has taken long enough, and the next one repeats the call.
    retrying = Retrying(
        retry=retry_if_exception(transient), wait=wait_exponential(multiplier=0.25, max=4.0),
        stop=stop_after_delay(RETRY_DEADLINE), reraise=True,
    )  # fmt: skip
    return retrying(send)


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
