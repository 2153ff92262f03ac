"""Plugin `slurm`: the nodes of a Slurm job are the workers. Its commands are the cluster's own."""

from __future__ import annotations

import os

from tpux import Finding, Host, Job, JsonValue, TpuSection, Worker, hookimpl
from tpux_slurm.allocator import inspect as inspect
from tpux_slurm.allocator import provision as provision
from tpux_slurm.allocator import release as release
from tpux_slurm.commands import VARIABLES
from tpux_slurm.host import SlurmHost
from tpux_slurm.section import SlurmTpuSection


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`."""
    return SlurmTpuSection


@hookimpl
def resolve() -> dict[str, JsonValue]:
    """Return the variables of this shell that Slurm's commands need: the supervisor has none of them."""
    names = (*VARIABLES, "HOME")
    return {"shown": ["SLURM_CONF"], **{name: os.environ[name] for name in names if name in os.environ}}


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that the cluster has what the section `tpu` requests."""
    from tpux_slurm.preflight import check

    return check(job, job.tpu) if isinstance(job.tpu, SlurmTpuSection) else []


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Return a host for a node. Its step starts at first use."""
    return SlurmHost(worker, job)
