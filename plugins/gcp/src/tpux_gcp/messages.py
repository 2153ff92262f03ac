"""Reads the JSON messages of the TPU API. What is unknown in them passes through; what is missing is empty."""

from __future__ import annotations

from collections.abc import Mapping

from tpux_gcp.resource import Endpoint, Maintenance, Node, Operation, QueuedResource, Symptom

Message = Mapping[str, object]
"""A message of the API v2 as it travels: JSON, with its fields in camelCase and enums by name."""
_PREVIEWS = {"autocheckpointEnabled", "provisioningModel", "runDuration"}
_PATH_PARTS = 6
"""Of `projects/PROJECT/locations/ZONE/COLLECTION/ID`."""


class UnreadableError(Exception):
    """A message that does not even say which resource it describes."""


def text(message: Message, field: str) -> str:
    """Return a field with a string, an enum or a number as text, empty if it has none of these."""
    value = message.get(field)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def part(message: Message, field: str) -> Message:
    """Return a field with a message, an empty one if it has none."""
    value = message.get(field)
    return value if isinstance(value, dict) else {}


def parts(message: Message, field: str) -> list[Message]:
    """Return the messages in a list; what is none is left out."""
    value = message.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts(message: Message, field: str) -> dict[str, str]:
    """Return a map of strings, such as labels."""
    return {key: str(value) for key, value in part(message, field).items()}


def integer(message: Message, field: str) -> int:
    """Return a field with an integer, 0 if it has none."""
    value = text(message, field)
    return int(value) if value.removeprefix("-").isdecimal() else 0


def parse_node(message: Message) -> Node:
    """Return a node as plain data.

    Raises:
        UnreadableError: it has no name.
    """
    zone, name = _place(message)
    scheduling = part(message, "schedulingConfig")
    return Node(
        name=name,
        zone=zone,
        state=text(message, "state"),
        health=_specified(text(message, "health")),
        accelerator=text(message, "acceleratorType"),
        labels=texts(message, "labels"),
        metadata=texts(message, "metadata"),
        endpoints=tuple(
            Endpoint(text(each, "ipAddress"), text(part(each, "accessConfig"), "externalIp"))
            for each in parts(message, "networkEndpoints")
        ),
        queued_resource=text(message, "queuedResource").rpartition("/")[2],
        pricing="spot" if scheduling.get("spot") else "preemptible" if scheduling.get("preemptible") else "ondemand",
        version=text(message, "runtimeVersion"),
        maintenance=_maintenance(part(message, "upcomingMaintenance")),
        symptoms=tuple(
            Symptom(kind, text(each, "createTime"), text(each, "workerId"), text(each, "details"))
            for each in parts(message, "symptoms")
            if (kind := _specified(text(each, "symptomType")))
        ),
    )


def _maintenance(message: Message) -> Maintenance | None:
    start, end, status = (text(message, field) for field in ("windowStartTime", "windowEndTime", "maintenanceStatus"))
    return Maintenance(start, end, status == "ONGOING") if start or status in {"PENDING", "ONGOING"} else None


def parse_queued_resource(message: Message) -> QueuedResource:
    """Return a queued resource as plain data.

    Raises:
        UnreadableError: it has no name.
    """
    zone, name = _place(message)
    state, specs = part(message, "state"), parts(part(message, "tpu"), "nodeSpec")
    node = part(specs[0], "node") if specs else {}
    error = part(part(state, "failedData"), "error")
    failed = text(state, "state") == "FAILED" and "failedData" in state
    return QueuedResource(
        name=name,
        zone=zone,
        state=text(state, "state"),
        node_ids=tuple(each for spec in specs for each in _node_ids(spec, name)),
        labels=texts(node, "labels"),
        accelerator=text(node, "acceleratorType"),
        pricing="spot" if "spot" in message else "ondemand",
        error=(integer(error, "code"), text(error, "message")) if failed else None,
        initiator=_specified(text(state, "stateInitiator")),
    )


def parse_operation(message: Message) -> Operation:
    """Return a long-running operation as plain data."""
    error = part(message, "error")
    code = (integer(error, "code") or 2) if "error" in message else 0  # google.rpc.Code UNKNOWN
    return Operation(message.get("done") is True, code, text(error, "message"))


def version_of(message: Message) -> str:
    """Return the version of the API that a message is sent to: v2, but v2alpha1 if it has fields of a preview."""
    specs = parts(part(message, "tpu"), "nodeSpec")
    nodes = [message, *(part(spec, "node") for spec in specs)]
    return "v2alpha1" if any(_PREVIEWS & node.keys() for node in nodes) else "v2"


def creates(message: Message, target: str) -> bool:
    """Return whether an operation's metadata, of whichever type, say that it creates a resource.

    A project may be named by its number: the part after it counts.
    """
    metadata = part(message, "metadata")
    place = text(metadata, "target").partition("/locations/")[2]
    return text(metadata, "verb").lower() in {"create", ""} and place == target.partition("/locations/")[2] != ""


def _place(message: Message) -> tuple[str, str]:
    path = text(message, "name").split("/")
    if len(path) != _PATH_PARTS or not all(path):
        raise UnreadableError(f"a resource without a name: {sorted(message)}")
    return path[3], path[5]


def _node_ids(spec: Message, queued_id: str) -> list[str]:
    several = part(spec, "multisliceParams") or part(spec, "multiNodeParams")  # v2alpha1
    if not several and "multisliceParams" not in spec:
        return [text(spec, "nodeId") or queued_id]
    prefix = text(several, "nodeIdPrefix") or queued_id
    return [f"{prefix}-{number}" for number in range(integer(several, "nodeCount"))]


def _specified(name: str) -> str:
    """Return the name of an enum's value, empty for `..._UNSPECIFIED`."""
    return "" if name.endswith("_UNSPECIFIED") else name
