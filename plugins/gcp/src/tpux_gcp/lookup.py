"""TPUs found by name or listed, for `tpux tpu`: queued resources with their nodes, and single nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tpux import TpuxError, UsageError
from tpux_gcp.api import Api
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.project import find_place
from tpux_gcp.resource import Location, TpuResource

ALL_ZONES = "-"


@dataclass(frozen=True)
class FoundTpu:
    """A TPU and its zone."""

    name: str
    location: Location
    resource: TpuResource


@contextmanager
def cli_errors() -> Iterator[None]:
    """Raise errors of the API and of the config as the errors that the command line prints."""
    try:
        yield
    except CloudError as error:
        raise TpuxError(error.problem.message, where=error.problem.kind, hint=error.problem.hint) from error
    except InvalidConfigError as error:
        raise UsageError(error.failure.evidence, hint=error.failure.hint) from error


def open_api(project: str | None) -> Api:
    """Return the API of a project, by default the environment's.

    Raises:
        TpuxError: no project is set.
    """
    with cli_errors():
        return Api(find_place(project))


def zone_or_default(api: Api, zone: str | None) -> str:
    """Return the zone, by default the environment's.

    Raises:
        UsageError: no zone is set.
    """
    if not (found := zone or api.place.zone):
        raise UsageError("no zone", hint="give --zone, or run: gcloud config set compute/zone ZONE")
    return found


def find(api: Api, name: str, zone: str) -> FoundTpu:
    """Return the TPU of a name: the queued resource, or else the node.

    Raises:
        UsageError: the API answers that neither exists.
        TpuxError: the API failed; what exists is unknown.
    """
    location = Location(api.project, zone)
    with cli_errors():
        resource = api.tpu(location, name, queue=True) or api.leftover_nodes(location, name, {})
    if resource is None:
        raise UsageError(
            f"no TPU {name} in {zone} of project {api.project} (neither a queued resource nor a node)",
            hint="`tpux tpu list` shows all TPUs of the project",
        )
    return FoundTpu(name, location, resource)


def list_tpus(api: Api, zone: str | None) -> tuple[list[FoundTpu], list[str]]:
    """List the TPUs of a zone, or of all zones: queued resources with their nodes, then the other nodes.

    Returns:
        The TPUs, and the locations that the API could not reach, whose TPUs are missing.

    Raises:
        TpuxError: the API failed.
    """
    location, unreachable = Location(api.project, zone or ALL_ZONES), list[str]()
    with cli_errors():
        queued_resources, nodes = api.queued_resources(location, unreachable), api.nodes(location, unreachable)
    remaining = {(node.zone, node.name): node for node in nodes}
    found = []
    for queued in queued_resources:
        own = {name: node for name in queued.node_ids if (node := remaining.pop((queued.zone, name), None))}
        found.append(FoundTpu(queued.name, Location(api.project, queued.zone), TpuResource.from_queued(queued, own)))
    found += [
        FoundTpu(node.name, Location(api.project, node.zone), TpuResource.from_node(node))
        for node in remaining.values()
    ]
    return found, sorted(set(unreachable))
