"""The plugin `local`: workers on this machine, each with a home directory of its own. No cloud, no root, no ssh."""

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
    """The section `local`."""
    return LocalSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Whether this machine can be a worker, and has a number of workers to be."""
    findings = []
    missing = [program for program in ("sh", "flock", "setsid") if shutil.which(program) is None]
    if not Path("/proc/self/environ").exists():
        hint = "use machines that run Linux, such as TPU VMs"
        findings.append(Finding("error", f"workers on this machine need Linux; this is {sys.platform}", hint=hint))
    elif missing:
        findings.append(Finding("error", f"this machine has no {' and no '.join(missing)}", hint="install util-linux"))
    try:
        workers_per_slice(job.tpu)
    except UsageError as error:
        findings.append(Finding("error", error.message, where="tpu.accelerator", hint=error.hint))
    return findings


@hookimpl
def connect(worker: Worker) -> Host:
    """Open a worker: nothing is opened, for it is a directory."""
    return LocalHost(worker)
