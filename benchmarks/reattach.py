"""The supervisor is killed with 100 running jobs and started again: how soon it has hold of all of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median

from benchmarks.many_jobs import let_go
from benchmarks.measure import Row, at_most, until
from benchmarks.world import Gate, World, running, world
from tpux.store.record import Record

JOBS = 100
KILLS = 3


def rows() -> list[Row]:
    """From the command that starts it again until the last job's log has what was written in the meantime.

    Each program writes a line while no supervisor lives: it comes home with the first look at its run.
    """
    with world() as one:
        gates = [one.gate(f"gate-{number}") for number in range(KILLS)]
        end = one.gate("end")
        waits = "; ".join(f": < {gate.path}; echo passed" for gate in gates)
        records = one.create(one.config(f"command: {{cmd: '{waits}; : < {end.path}'}}\n"), JOBS)
        pid = one.start()
        until(lambda: all(map(running, records)), within=90, why="100 running jobs", every=0.25)
        taken = []
        for number, gate in enumerate(gates):
            took, pid = _kill_and_start(one, pid, gate, records, number + 1)
            taken.append(took)
        let_go(end, records)
        starts = sum(1 for record in records for event, _ in record.events() if event.type == "attempt-started")
        succeeded = sum(record.refresh().state == "succeeded" for record in records)
    note = f"median of {KILLS} kills; the slowest {max(taken):.2f} s"
    found = f"{succeeded} succeeded, {starts} attempts"
    return [
        at_most(f"supervisor killed with {JOBS} running jobs: all re-attached", median(taken), 2, unit=" s", note=note),
        Row("... and what became of them", found, "each started once", starts == succeeded == JOBS),
    ]


def _kill_and_start(one: World, pid: int, gate: Gate, records: list[Record], lines: int) -> tuple[float, int]:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), within=10, why="its end")
    outputs = [_output_on_worker(record) for record in records]
    until(lambda: _all_have(outputs, lines, gate), within=20, why="what the programs write", every=0.1)
    logs = [record.logs / "attempt-1" / "command_worker_0.log" for record in records]
    start = time.time()
    again = one.start()
    until(lambda: _all_have(logs, lines), within=30, why="the logs", every=0.05)
    return max(log.stat().st_mtime for log in logs) - start, again


def _output_on_worker(record: Record) -> Path:
    return next((record.directory / "machines").glob("*/worker-0/.tpux/runs/*/1/command/output"))


def _all_have(paths: list[Path], lines: int, gate: Gate | None = None) -> bool:
    if gate is not None:
        gate.open()
    return all(path.stat().st_size >= lines * len("passed\n") for path in paths)
