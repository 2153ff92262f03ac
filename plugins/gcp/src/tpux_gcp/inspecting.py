"""What state the machines of a job are in now; an error of the API is `unknown`, never gone."""

from __future__ import annotations

from tpux import MachineStatus, ProvisionRequest
from tpux_gcp import names
from tpux_gcp.errand import Errand
from tpux_gcp.problems import CloudError, RefusedError
from tpux_gcp.things import Thing

LOOK = 30.0


def inspect(request: ProvisionRequest, *, queue: bool) -> MachineStatus:
    """Ask the cloud once (twice where there is a queued resource)."""
    try:
        errand = Errand.of(request, queue=queue)
        if errand is None:
            return MachineStatus("gone", evidence="no machines were asked for")
        thing = errand.look()
    except RefusedError as error:
        return MachineStatus("unknown", evidence=str(error))
    except CloudError as error:
        return MachineStatus("unknown", evidence=str(error), poll_after=LOOK)
    if thing is None:
        return MachineStatus("gone", evidence=f"the TPU {errand.name} is no longer in {errand.memo.zone}")
    if names.owner(thing.labels, request) == "another" or (
        not errand.memo.borrowed and names.owner(thing.labels, request) != "ours"
    ):
        return MachineStatus("gone", evidence=f"the TPU {errand.name} in {errand.memo.zone} is now somebody else's")
    return _machines(errand, thing)


def _machines(errand: Errand, thing: Thing) -> MachineStatus:
    details = {node.name: f"{node.state} {node.health}".strip() for node in thing.nodes}
    if thing.stand == "ready":
        return MachineStatus("ready", evidence=thing.state, poll_after=LOOK, details=details)
    if thing.stand in {"queued", "making"}:
        return MachineStatus("waiting", evidence=thing.state, poll_after=LOOK, details=details)
    if thing.stand == "broken":
        # Its state is `UNKNOWN`, or a node of a queued resource that is ACTIVE is not there.
        missing = not thing.nodes
        return MachineStatus("gone" if missing else "unknown", evidence=thing.state, details=details)
    if thing.by_user or thing.stand in {"stopped", "failed"}:
        return MachineStatus("gone", evidence=thing.state, details=details)
    if thing.stand == "maintenance":
        # TERMINATED is also how the day of a preemptible node ends.
        ended = errand.tpu.pricing == "preemptible"
        return MachineStatus("preempted" if ended else "maintenance", evidence=thing.state, details=details)
    suspended = thing.stand == "preempted" or (thing.stand == "leaving" and "SUSPENDING" in thing.state)
    return MachineStatus("preempted" if suspended else "gone", evidence=thing.state, details=details)
