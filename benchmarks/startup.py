"""CPU time of `tpux --help`, and of `tpux list` with 10,000 stored jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.measure import Row, alternate, at_most, cpu, ratio
from benchmarks.sandbox import TPUX, Sandbox, temporary_sandbox
from tpux.model import events
from tpux.model.machines import Allocation, Worker
from tpux.store import Files, Store

JOBS = 10_000
LIVE = 5
ROUNDS = 15
HELLO: list[str | Path] = [sys.executable, Path(__file__).with_name("hello.py")]


def rows() -> list[Row]:
    """Compare the commands with a minimal typer program; the start of a supervisor is not included."""
    with temporary_sandbox() as sandbox:
        fill(sandbox.store, JOBS)
        idle = measure(sandbox)
        live(sandbox)
        pid = sandbox.start()
        with_live = measure(sandbox)
        assert pid == sandbox.start(), "the supervisor must run before and after"
    (hello, helped, listed), (hello_again, _, listed_live) = idle, with_live
    note = f"minimal program {1000 * median(hello):.0f} ms"
    return [
        at_most("CPU of `tpux --help` / a minimal typer program", ratio(helped, hello), 1.5, note=note),
        at_most(f"CPU of `tpux list`, {JOBS:,} ended jobs / the minimal program", ratio(listed, hello), 2.5),
        at_most(f"... {LIVE} of them running", ratio(listed_live, hello_again), 2.5),
    ]


def measure(sandbox: Sandbox) -> list[list[float]]:
    """Return the CPU seconds of the minimal program, of `tpux --help` and of `tpux list`."""
    return alternate(
        ROUNDS, lambda: cpu(HELLO), lambda: cpu([TPUX, "--help"], sandbox.env), lambda: cpu([TPUX, "list"], sandbox.env)
    )


def fill(store: Store, count: int, happened: Sequence[events.Event] | None = None) -> None:
    """Store jobs on four workers: one is made, the others are copies of its directory.

    Args:
        store: an empty store, or one with other jobs.
        count: how many.
        happened: what happened to each; by default it ran and succeeded.
    """
    if not count:
        return
    with patch("os.fsync"):  # the store need not survive a crash
        record = store.create(lambda job: _content(store, job), at=time.time())
        if not record.acquire():
            raise RuntimeError("another process holds the lock of a new job")
        for event in ENDED if happened is None else happened:
            record.write(event, time.time())
        record.lock.release()
    first = int(record.id)
    contents = {path.name: path.read_bytes() for path in record.directory.iterdir() if path.is_file()}
    for number in range(first + 1, first + count):
        job = record.directory.with_name(f"{number:06}")
        (job / "logs").mkdir(parents=True, mode=0o700)
        for name, content in contents.items():
            (job / name).write_bytes(content.replace(record.id.encode(), job.name.encode()))
    (store.shared / "next_id").write_text(f"{first + count}\n")


def live(sandbox: Sandbox) -> None:
    """Create jobs that wait at a gate."""
    gate = sandbox.gate("gate")
    sandbox.create(sandbox.config(f"command: {{cmd: ': < {gate.path}'}}\n"), LIVE)


def _content(store: Store, job: str) -> tuple[Files, events.Created]:
    created = events.Created(
        id=job,
        user=store.user,
        name="train",
        accelerator="v4-32",
        zone="us-central2-b",
        allocator="local",
        workers=4,
    )
    return {"config.yaml": (b"command: {cmd: x}\n", 0o600)}, created


_WORKERS = tuple(
    Worker(index, address="127.0.0.1", details={"home": f"/somewhere/worker-{index}"}) for index in range(4)
)
ENDED: list[events.Event] = [
    events.StateChanged(to="provisioning", why="requesting v4-8 from local"),
    events.AllocationRequested(name="train", allocator="local"),
    events.Allocated(allocation=Allocation("train", "local", _WORKERS)),
    events.StateChanged(to="setting-up", why="setting up the workers"),
    events.AttemptStarted(attempt=1, stage=0, workers=(0, 1, 2, 3), output_dir="/out", resume=False),
    events.StateChanged(to="running", why="attempt 1"),
    *(events.WorkerExited(attempt=1, worker=worker, code=0) for worker in range(4)),
    events.AttemptEnded(attempt=1, failure=None),
    events.StateChanged(to="succeeded"),
    events.Released(),
]
RUNNING = ENDED[:6]
"""What happened to a job that runs."""
