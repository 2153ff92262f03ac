"""100 MB of output from each of four workers: correctness of the logs, and time compared with writing to files."""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, alternate, at_most, ratio, until
from benchmarks.sandbox import Sandbox, temporary_sandbox
from tpux.store import requests
from tpux.store.record import Record

PROGRAM = "seq 100000001 110000000"
"""Ten million lines of ten bytes. (Not `cat`: file systems with copy-on-write would copy nothing.)"""
WORKERS = 4
ROUNDS = 3


def rows() -> list[Row]:
    """Measure a job's time from its start to complete logs, and that of the same programs writing to files."""
    with temporary_sandbox() as sandbox:
        config = sandbox.config(f"tpu: {{accelerator: v4-32}}\ncommand: {{cmd: {PROGRAM}}}\n")
        sums: dict[str, set[str]] = {"file": set(), "log": set()}
        files, jobs = alternate(
            ROUNDS, lambda: _to_files(sandbox, sums["file"]), lambda: _as_job(sandbox, config, sums["log"])
        )
    same = sums["log"] == sums["file"] and len(sums["log"]) == 1
    found = "the same bytes" if same else f"{len(sums['log'] | sums['file'])} different contents"
    note = f"{median(jobs):.2f} s / {median(files):.2f} s"
    return [
        Row(f"100 MB of output from each of {WORKERS} workers", found, "the same bytes (sha256)", same),
        at_most("... time / time of writing the same to files", ratio(jobs, files), 3, note=note),
    ]


def _to_files(sandbox: Sandbox, sums: set[str]) -> float:
    targets = [sandbox.directory / f"file-{worker}" for worker in range(WORKERS)]
    start = time.monotonic()
    processes = [subprocess.Popen(["sh", "-c", f"{PROGRAM} >{target}"]) for target in targets]
    codes = [process.wait() for process in processes]
    took = time.monotonic() - start
    if any(codes):
        raise RuntimeError("the program failed")
    sums |= {_sum(target) for target in targets}
    for target in targets:
        target.unlink()
    return took


def _as_job(sandbox: Sandbox, config: Path, sums: set[str]) -> float:
    (record,) = sandbox.create(config, 1)
    sandbox.start()
    until(lambda: requests.has_finished(record), within=60, why="the job to end")
    sums |= {_sum(record.logs / "attempt-1" / f"command_worker_{worker}.log") for worker in range(WORKERS)}
    took = _duration(record)
    sandbox.tpux("delete", "-y", record.directory.name)
    return took


def _duration(record: Record) -> float:
    at = [(event.type, event.at) for event, _ in record.events()]
    return max(when for kind, when in at if kind == "worker-exited") - dict(at)["attempt-started"]


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
