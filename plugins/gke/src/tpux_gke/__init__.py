"""Plugin `gke`: the pods of a JobSet on TPU nodes are the workers."""

from __future__ import annotations

from tpux import Finding, Host, Job, JsonValue, TpuSection, Worker, hookimpl
from tpux_gke.allocator import find_orphans as find_orphans
from tpux_gke.allocator import inspect as inspect
from tpux_gke.allocator import provision as provision
from tpux_gke.allocator import release as release
from tpux_gke.section import GkeTpuSection, section_of


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`."""
    return GkeTpuSection


@hookimpl
def resolve(job: Job) -> dict[str, JsonValue]:
    """Return the cluster that the config and this shell stand for: the supervisor has no kubeconfig of its own."""
    from tpux_gke.cluster import find

    return find(section_of(job.tpu)).to_json()


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that the cluster has, and lets the user do, what the section `tpu` needs."""
    from tpux_gke.preflight import check

    return check(job, job.tpu) if isinstance(job.tpu, GkeTpuSection) else []


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Return a host for a pod. Its exec is opened at first use."""
    from tpux_gke.host import GkeHost

    return GkeHost(worker, job)
