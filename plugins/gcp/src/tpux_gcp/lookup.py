"""A TPU by its name alone: the queued resource of that name first, then the node; only a 404 falls through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux import TpuxError, UsageError
from tpux_gcp import project as where
from tpux_gcp.api import Api, look
from tpux_gcp.errors import CloudError, RefusedError
from tpux_gcp.resource import Place, Thing, of_node, of_queued

if TYPE_CHECKING:
    from google.cloud import tpu_v2

EVERYWHERE = "-"


@dataclass(frozen=True)
class Found:
    """A TPU, and where it is."""

    name: str
    place: Place
    thing: Thing


def api_of(project: str | None) -> Api:
    """The API of a project: the one that is given, or the environment's.

    Raises:
        TpuxError: there is none.
    """
    endpoint = where.endpoint()
    try:
        return Api(where.project(project, endpoint), endpoint)
    except RefusedError as error:
        raise told(error) from error


def zone_of(zone: str | None) -> str:
    """The zone that is given, or the environment's.

    Raises:
        UsageError: there is none.
    """
    if not (chosen := zone or where.zone()):
        raise UsageError("no zone", hint="give --zone, or run: gcloud config set compute/zone ZONE")
    return chosen


def find(api: Api, name: str, zone: str) -> Found:
    """The TPU of that name.

    Raises:
        UsageError: the cloud says that there is none.
        TpuxError: it could not be seen; that is not the same.
    """
    place = Place(api.project, zone)
    try:
        thing = look(api, place, name, queue=True)
    except CloudError as error:
        raise told(error) from error
    if thing is None:
        raise UsageError(
            f"there is no TPU {name} in {zone} of project {api.project}, neither queued nor made",
            hint="`tpux tpu list` shows all that there are",
        )
    return Found(name, place, thing)


def list_all(api: Api, zone: str, unreachable: list[str]) -> list[Found]:
    """All TPUs of a zone, or of all zones: queued resources with their nodes, then nodes that stand alone.

    Args:
        api: whom to ask.
        zone: a zone, or `EVERYWHERE`.
        unreachable: gets the names of what the API could not reach.

    Raises:
        TpuxError: they could not be seen.
    """
    try:
        place = Place(api.project, zone)
        queued, nodes = api.all_queued(place, unreachable), api.nodes(place, unreachable)
    except CloudError as error:
        raise told(error) from error
    by_place = {(node.zone, node.name): node for node in nodes}
    found = []
    for resource in queued:
        own = {name: by_place[resource.zone, name] for name in resource.nodes if (resource.zone, name) in by_place}
        found.append(Found(resource.name, Place(api.project, resource.zone), of_queued(resource, own)))
    covered = {(item.zone, name) for item in queued for name in item.nodes}
    alone = [node for key, node in by_place.items() if key not in covered]
    return found + [Found(node.name, Place(api.project, node.zone), of_node(node)) for node in alone]


def messages(api: Api, found: Found) -> list[tpu_v2.Node | tpu_v2.QueuedResource]:
    """All that the API shows of a TPU: the queued resource, where there is one, and its nodes."""
    try:
        shown = [api.queued_message(found.place, found.thing.queued)] if found.thing.queued else []
        shown += [api.node_message(found.place, node.name) for node in found.thing.nodes]
    except CloudError as error:
        raise told(error) from error
    return [message for message in shown if message is not None]


def delete(api: Api, found: Found) -> None:
    """Begin to delete a TPU; a queued resource goes with its nodes.

    Raises:
        TpuxError: the cloud refused, or did not answer.
    """
    try:
        if found.thing.queued:
            api.delete_queued(found.place, found.thing.queued)
        else:
            api.delete_node(found.place, found.name)
    except CloudError as error:
        raise told(error) from error


def told(error: CloudError | RefusedError) -> TpuxError:
    """The error as the command line prints it."""
    if isinstance(error, CloudError):
        return TpuxError(error.problem.message, where=error.problem.kind, hint=error.problem.hint)
    return UsageError(error.failure.evidence, hint=error.failure.hint)
