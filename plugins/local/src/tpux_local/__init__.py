"""Plugin `local`: workers on this machine, each with its own home directory. Needs no cloud, root or SSH."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tpux import Finding, Host, Job, Section, UsageError, Worker, hookimpl
from tpux_local.allocator import inspect as inspect
from tpux_local.allocator import provision as provision
from tpux_local.allocator import release as release
from tpux_local.allocator import workers_per_slice
from tpux_local.host import LocalHost
from tpux_local.section import LocalSection


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `local`."""
    return LocalSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that this machine can run workers and that the accelerator is known."""
    findings = []
    missing = [program for program in ("sh", "flock", "setsid") if shutil.which(program) is None]
    if not Path("/proc/self/environ").exists():
        hint = "use machines that run Linux, such as TPU VMs"
        findings.append(Finding("error", f"local workers need Linux; this machine runs {sys.platform}", hint=hint))
    elif missing:
        findings.append(
            Finding("error", f"programs not found on this machine: {', '.join(missing)}", hint="install util-linux")
        )
    try:
        workers_per_slice(job.tpu)
    except UsageError as error:
        findings.append(Finding("error", error.message, where="tpu.accelerator", hint=error.hint))
    return findings


@hookimpl
def connect(worker: Worker) -> Host:
    """Return a host for a worker. A worker is a directory, so there is nothing to open."""
    return LocalHost(worker)
