"""The allocators `tpu-vm` and `queued-resources`: their hooks."""

from __future__ import annotations

from tpux import Denied, Finding, Job, Machines, Ready, Released, Request, Waiting, hookimpl
from tpux_gcp import labels, preflight, provision, release
from tpux_gcp.errors import CloudError, RefusedError
from tpux_gcp.request import Errand
from tpux_gcp.resource import Thing


class Allocator:
    """The hooks of both.

    Args:
        queue: whether TPUs are asked for by queued resources. Several slices are had by one in any case.
    """

    def __init__(self, *, queue: bool) -> None:
        self._queue = queue

    @hookimpl
    def provision(self, request: Request) -> Ready | Waiting | Denied:
        """Take one step towards the machines."""
        return provision.provision(request, queue=self._queue)

    @hookimpl
    def inspect(self, request: Request) -> Machines:
        """What state they are in."""
        return inspect(request, queue=self._queue)

    @hookimpl
    def release(self, request: Request) -> Released | Waiting:
        """Take one step towards nothing left that costs money."""
        return release.release(request, queue=self._queue)

    @hookimpl
    def preflight(self, job: Job) -> list[Finding]:
        """Credentials, project, zone, accelerator, version and name, before anything is created."""
        return preflight.preflight(job)


tpu_vm = Allocator(queue=False)
queued_resources = Allocator(queue=True)

LOOK = 30.0


def inspect(request: Request, *, queue: bool) -> Machines:
    """Ask the cloud once (twice where there is a queued resource)."""
    try:
        errand = Errand.of(request, queue=queue)
        if errand is None:
            return Machines("gone", evidence="no machines were asked for")
        thing = errand.look()
    except RefusedError as error:
        return Machines("unknown", evidence=str(error))
    except CloudError as error:
        return Machines("unknown", evidence=str(error), look_again_after=LOOK)
    if thing is None:
        return Machines("gone", evidence=f"the TPU {errand.name} is no longer in {errand.memo.zone}")
    if labels.owner(thing.labels, request) == "another" or (
        not errand.memo.borrowed and labels.owner(thing.labels, request) != "ours"
    ):
        return Machines("gone", evidence=f"the TPU {errand.name} in {errand.memo.zone} is now somebody else's")
    return _machines(errand, thing)


def _machines(errand: Errand, thing: Thing) -> Machines:
    details = {node.name: f"{node.state} {node.health}".strip() for node in thing.nodes}
    if thing.stand == "ready":
        return Machines("ready", evidence=thing.state, look_again_after=LOOK, details=details)
    if thing.stand in {"queued", "making"}:
        return Machines("waiting", evidence=thing.state, look_again_after=LOOK, details=details)
    if thing.stand == "broken":
        # Its state is `UNKNOWN`, or a node of a queued resource that is ACTIVE is not there.
        missing = not thing.nodes
        return Machines("gone" if missing else "unknown", evidence=thing.state, details=details)
    if thing.by_user or thing.stand in {"stopped", "failed"}:
        return Machines("gone", evidence=thing.state, details=details)
    if thing.stand == "maintenance":
        # TERMINATED is also how the day of a preemptible node ends.
        ended = errand.tpu.pricing == "preemptible"
        return Machines("preempted" if ended else "maintenance", evidence=thing.state, details=details)
    suspended = thing.stand == "preempted" or (thing.stand == "leaving" and "SUSPENDING" in thing.state)
    return Machines("preempted" if suspended else "gone", evidence=thing.state, details=details)
