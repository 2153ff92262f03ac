"""Plugin `local`: workers on this machine, each with its own home directory. Needs no cloud, root or SSH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tpux import Finding, Host, Job, JsonValue, Section, TpuSection, Worker, hookimpl
from tpux_local.allocator import inspect as inspect
from tpux_local.allocator import provision as provision
from tpux_local.allocator import release as release
from tpux_local.host import VARIABLES, LocalHost
from tpux_local.section import LocalSection, LocalTpuSection


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `local`."""
    return LocalSection


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`."""
    return LocalTpuSection


@hookimpl
def resolve() -> dict[str, JsonValue]:
    """Return the variables that programs on the workers get from this shell."""
    return {"shown": [], **{name: os.environ[name] for name in VARIABLES if name in os.environ}}


@hookimpl
def preflight() -> list[Finding]:
    """Check that this machine can run workers."""
    findings = []
    missing = [program for program in ("sh", "flock", "setsid") if shutil.which(program) is None]
    if not Path("/proc/self/environ").exists():
        hint = "use machines that run Linux, such as TPU VMs"
        findings.append(Finding("error", f"local workers need Linux; this machine runs {sys.platform}", hint=hint))
    elif missing:
        findings.append(
            Finding("error", f"programs not found on this machine: {', '.join(missing)}", hint="install util-linux")
        )
    return findings


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Return a host for a worker. A worker is a directory, so there is nothing to open."""
    return LocalHost(worker, job.resolved.get("local", {}))


@hookimpl
def shell_on(worker: Worker, job: Job) -> list[str]:
    """Return the command that runs a shell as a process of another worker."""
    variables = LocalHost(worker, job.resolved.get("local", {})).environment()
    return ["env", "-i", "-C", worker.details["home"], *(f"{name}={value}" for name, value in variables.items()), "sh"]
