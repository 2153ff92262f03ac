"""What Google reports of a TPU that a job uses: planned maintenance, and symptoms of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux import Finding, Job, TpuxError, Worker
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.resource import Location

if TYPE_CHECKING:
    from tpux_gcp.resource import Node

NODE = "node"
"""The detail of the first worker of each slice that names its node, as `ZONE/NAME`."""


def reports(job: Job, worker: Worker) -> list[Finding]:
    """Return what Google reports of a worker's slice; nothing for other workers than its first.

    Raises:
        TpuxError: the API failed.
    """
    zone, _, name = worker.details.get(NODE, "").partition("/")
    if not name:
        return []
    try:
        api = Api(Place.from_json(job.resolved[job.tpu.allocation_mode]))
        node = api.node(Location(api.project, zone), name)
    except (CloudError, InvalidConfigError) as error:
        raise TpuxError(str(error), where=f"TPU {name}") from error
    return [] if node is None else findings(node)


def findings(node: Node) -> list[Finding]:
    """Return a warning for what is planned for a node, and for each kind of symptom that it has."""
    found = []
    if node.maintenance is not None:
        hint = "before it the programs get the notice to save their work (tpu.maintenance_notice), as of a preemption"
        found.append(Finding("warning", f"{node.name}: {node.maintenance}", "maintenance", hint))
    latest = {symptom.kind: symptom for symptom in sorted(node.symptoms, key=lambda each: each.time)}
    found += [Finding("warning", f"{node.name}: {symptom}", f"symptom {kind}") for kind, symptom in latest.items()]
    return found
