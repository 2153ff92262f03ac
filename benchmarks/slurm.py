"""A job on a real Slurm cluster of four nodes on this machine: how soon it starts, and what a call costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most
from tpux import Job, Ready, Waiting
from tpux.plugin import spec
from tpux_slurm.contract_fixture import Cluster, why_not
from tpux_slurm.host import SlurmHost
from tpux_testing.sandbox import Sandbox, environment, provision_request

_CALLS = 200
_READY_TARGET = 4.0
_CALL_TARGET = 15.0
_IMPORT_TARGET = 30.0


def rows() -> list[Row]:
    """Measure the allocator and the transport, without a supervisor."""
    if reason := why_not():
        return [Row("jobs on Slurm", f"not measured: {reason}")]
    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="tpux-slurm-", ignore_cleanup_errors=True))
        slurm = stack.enter_context(Cluster(Path(made)))
        names = ("SLURM_CONF", "PATH")
        stack.enter_context(environment(**{name: slurm.environment[name] for name in names}))
        sandbox = stack.enter_context(Sandbox())
        job = sandbox.job({"tpu": {"allocation_mode": "slurm", "nodes": 4, "node_directory": str(Path(made) / "jobs")}})
        submitted = [_provision_and_release(sandbox, slurm, job) for _ in range(3)]
    ready, first, calls, released = (median(values) for values in zip(*submitted, strict=True))
    return [
        at_most("Slurm, four nodes: from sbatch to machines ready", ready, _READY_TARGET, unit=" s"),
        Row("... the first call on a node, which starts its step", f"{first * 1000:.3g} ms"),
        at_most("... a call on the open connection", calls * 1000, _CALL_TARGET, unit=" ms"),
        Row("... until the nodes are released", f"{released:.3g} s"),
        at_most(
            "... import of the plugin, beside what core imports", _import_time() * 1000, _IMPORT_TARGET, unit=" ms"
        ),
    ]


def _provision_and_release(sandbox: Sandbox, slurm: Cluster, job: Job) -> tuple[float, float, float, float]:
    slurm.wait_until_idle()
    request = provision_request(job, "bench", sandbox.new_directory())
    started = time.monotonic()
    while not isinstance(answer := sandbox.plugins.call_one("slurm", spec.provision, request=request), Ready):
        if not isinstance(answer, Waiting):
            raise TypeError(answer)
        time.sleep(min(answer.poll_after, 1))
    ready = time.monotonic()
    host = SlurmHost(answer.allocation.workers[0], job)
    host.run("true")
    first = time.monotonic()
    for _ in range(_CALLS):
        host.run("true")
    called = time.monotonic()
    host.close()
    ending = time.monotonic()
    while isinstance(sandbox.plugins.call_one("slurm", spec.release, request=request), Waiting):
        time.sleep(0.5)
    return ready - started, first - ready, (called - first) / _CALLS, time.monotonic() - ending


def _import_time() -> float:
    """Return the seconds that the import takes, once what every plugin needs is imported."""
    script = (
        "import time, tpux; from tpux import *; from tpux.fields import Duration\n"
        "start = time.perf_counter(); import tpux_slurm; print(time.perf_counter() - start)"
    )
    taken = [
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env={**os.environ})
        for _ in range(5)
    ]
    return median(float(done.stdout) for done in taken)
