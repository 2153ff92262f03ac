"""A supervisor that is short of something: of descriptors, or of an API that answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import TPUX, Sandbox, running, temporary_sandbox
from tpux.store.record import Record

JOBS = 300
LIMIT = 64
"""Descriptors of the supervisor of these jobs."""
HUNG = 100
"""Jobs whose API does not answer."""
LINES = 20
PLUGIN = """
import time
from pathlib import Path
import tpux_local
from tpux import hookimpl

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request): return tpux_local.provision(request)
@hookimpl
def inspect(request):
    if not (request.directory.parent / "healthy").exists():
        while Path("{hang}").exists():
            time.sleep(0.1)
    return tpux_local.inspect(request)
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job): return tpux_local.connect(worker, job)
"""
HEALTHY = "for i in $(seq 1000); do date +%s.%N; sleep 0.5; done"


def rows() -> list[Row]:
    """Measure jobs under a small limit of descriptors, and a healthy job beside many whose API hangs."""
    return [*_descriptors(), *_hung_api()]


def _descriptors() -> list[Row]:
    with temporary_sandbox() as sandbox:
        records = sandbox.create(sandbox.config("command: {cmd: sleep 1, grace_period: 1s}\n"), JOBS)
        (waits,) = sandbox.create(sandbox.config("command: {cmd: sleep 1000, grace_period: 1s}\n"), 1)
        script = f'ulimit -n {LIMIT} && exec "$0" supervisor start'
        subprocess.run(["sh", "-c", script, TPUX], env=sandbox.env, check=True, capture_output=True)
        began = time.monotonic()
        until(lambda: records[0].refresh().state == "running", within=60, why="a running job")
        stopped = _timed(sandbox, "stop", waits.id)
        until(lambda: all(record.refresh().ended for record in records), within=110, why="the jobs to end", every=0.5)
        took = time.monotonic() - began
        states = [record.refresh().state for record in records]
    succeeded = states.count("succeeded")
    title = f"{JOBS} jobs under a supervisor that may open {LIMIT} files"
    return [
        Row(title, f"{succeeded} succeeded ({took:.0f} s)", "all succeed", succeeded == JOBS),
        at_most("... `tpux stop` of a job that waits for a descriptor", stopped, 5, unit=" s"),
    ]


def _hung_api() -> list[Row]:
    with temporary_sandbox() as sandbox:
        hang = sandbox.directory / "hang"
        _install(sandbox, PLUGIN.replace("{hang}", str(hang)))
        text = "tpu: {allocation_mode: slow, accelerator: v4-8}\ncommand: {cmd: '%s', grace_period: 1s}\n"
        (healthy,) = sandbox.create(sandbox.config(text % HEALTHY), 1)
        (healthy.directory / "healthy").touch()
        others = sandbox.create(sandbox.config(text % "exec sleep 1000"), HUNG)
        hang.touch()
        sandbox.start()
        until(lambda: all(map(running, [healthy, *others])), within=110, why="running jobs", every=0.25)
        lags = _lags(healthy)
        began = time.monotonic()
        sandbox.tpux("stop", healthy.id, "--no-wait")
        until(lambda: healthy.refresh().state == "stopped", within=60, why="the program to end", every=0.01)
        stopped = time.monotonic() - began
        hang.unlink()
    note = f"median {median(lags):.2g} s of {LINES} lines"
    return [
        at_most(f"lag of a job's output beside {HUNG} whose API hangs", max(lags), 2, unit=" s", note=note),
        at_most("... `tpux stop --no-wait` until its program has ended", stopped, 3, unit=" s"),
    ]


def _install(sandbox: Sandbox, code: str) -> None:
    """Install the allocator `slow`, for the commands of the sandbox and for this process."""
    site = sandbox.directory / "site"
    info = site / "tpux_slow-1.dist-info"
    info.mkdir(parents=True)
    (site / "tpux_slow.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tpux-slow\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tpux]\nslow = tpux_slow\n")
    sandbox.env["PYTHONPATH"] = str(site)
    sys.path.append(str(site))


def _lags(record: Record) -> list[float]:
    """Return how long each of some lines took from the program to the log."""
    log = record.logs / "attempt-1/command_worker_0.log"
    known, lags = log.stat().st_size, list[float]()
    until(lambda: log.stat().st_size > known, within=60, why="output", every=0.01)
    known = log.stat().st_size
    while len(lags) < LINES:
        until(lambda size=known: log.stat().st_size > size, within=60, why="output", every=0.01)  # type: ignore[misc]
        now, content = time.time(), _new(log, known)
        lags += [now - float(line) for line in content.split()]
        known += len(content)
    return lags


def _new(log: Path, offset: int) -> bytes:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read()


def _timed(sandbox: Sandbox, *command: str) -> float:
    began = time.monotonic()
    sandbox.tpux(*command)
    return time.monotonic() - began
