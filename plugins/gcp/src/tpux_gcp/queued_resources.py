"""The allocator `queued-resources`: requests that wait in the queue until there is capacity."""

from __future__ import annotations

from tpux import Denied, Finding, Job, MachineStatus, ProvisionRequest, Ready, Released, Waiting, hookimpl
from tpux_gcp import inspecting, preflighting, provisioning, releasing


@hookimpl
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Take one step towards the machines."""
    return provisioning.provision(request, queue=True)


@hookimpl
def inspect(request: ProvisionRequest) -> MachineStatus:
    """What state they are in."""
    return inspecting.inspect(request, queue=True)


@hookimpl
def release(request: ProvisionRequest) -> Released | Waiting:
    """Take one step towards nothing left that costs money."""
    return releasing.release(request, queue=True)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Credentials, project, zone, accelerator, version and name, before anything is created."""
    return preflighting.preflight(job)
