"""The supervisor is killed with 100 running jobs and restarted: time until it has re-attached to all of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median

from benchmarks.many_jobs import release_all
from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import Gate, Sandbox, running, temporary_sandbox
from tpux.store.record import Record

JOBS = 100
KILLS = 3


def rows() -> list[Row]:
    """Measure the time from `tpux supervisor start` until every job's log has the line written in the meantime.

    Each program writes a line while no supervisor runs; the new supervisor fetches it with its first poll.
    """
    with temporary_sandbox() as sandbox:
        gates = [sandbox.gate(f"gate-{number}") for number in range(KILLS)]
        end = sandbox.gate("end")
        waits = "; ".join(f": < {gate.path}; echo passed" for gate in gates)
        records = sandbox.create(sandbox.config(f"command: {{cmd: '{waits}; : < {end.path}'}}\n"), JOBS)
        pid = sandbox.start()
        until(lambda: all(map(running, records)), within=90, why="100 running jobs", every=0.25)
        times = []
        for number, gate in enumerate(gates):
            took, pid = _kill_and_start(sandbox, pid, gate, records, number + 1)
            times.append(took)
        release_all(end, records)
        starts = sum(1 for record in records for event, _ in record.events() if event.type == "attempt-started")
        succeeded = sum(record.refresh().state == "succeeded" for record in records)
    note = f"median of {KILLS} kills; slowest {max(times):.2f} s"
    found = f"{succeeded} succeeded, {starts} attempts"
    return [
        at_most(f"supervisor killed with {JOBS} running jobs: all re-attached", median(times), 2, unit=" s", note=note),
        Row("... jobs and attempts", found, "each started once", starts == succeeded == JOBS),
    ]


def _kill_and_start(sandbox: Sandbox, pid: int, gate: Gate, records: list[Record], lines: int) -> tuple[float, int]:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), within=10, why="the supervisor to exit")
    outputs = [_output_on_worker(record) for record in records]
    until(lambda: _all_have(outputs, lines, gate), within=20, why="the programs' output", every=0.1)
    logs = [record.logs / "attempt-1" / "command_worker_0.log" for record in records]
    start = time.time()
    new_pid = sandbox.start()
    until(lambda: _all_have(logs, lines), within=30, why="the logs", every=0.05)
    return max(log.stat().st_mtime for log in logs) - start, new_pid


def _output_on_worker(record: Record) -> Path:
    return next((record.directory / "machines").glob("*/worker-0/.tpux/runs/*/1/command/output"))


def _all_have(paths: list[Path], lines: int, gate: Gate | None = None) -> bool:
    if gate is not None:
        gate.open()
    return all(path.stat().st_size >= lines * len("passed\n") for path in paths)
