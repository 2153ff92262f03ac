"""CPU time of `tpux --help`, and of `tpux list` with 1,000 stored jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.measure import Row, alternate, at_most, cpu, ratio
from benchmarks.sandbox import TPUX, Sandbox, temporary_sandbox
from tpux.plugin.machines import JsonValue
from tpux.store import Files, Store

JOBS = 1000
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


def fill(store: Store, count: int) -> None:
    """Store jobs that ran on four workers and succeeded."""
    with patch("os.fsync"):  # 15,000 calls would take minutes, and the store need not survive a crash
        for _ in range(count):
            record = store.create(lambda job: _content(store, job), at=time.time())
            if not record.acquire():
                raise RuntimeError("another process holds the lock of a new job")
            for kind, facts in _EVENTS:
                record.write(kind, time.time(), **facts)
            record.lock.release()


def live(sandbox: Sandbox) -> None:
    """Create jobs that wait at a gate."""
    gate = sandbox.gate("gate")
    sandbox.create(sandbox.config(f"command: {{cmd: ': < {gate.path}'}}\n"), LIVE)


def _content(store: Store, job: str) -> tuple[Files, Mapping[str, JsonValue]]:
    facts: dict[str, JsonValue] = {"accelerator": "v4-32", "zone": "us-central2-b", "allocator": "local", "workers": 4}
    return {"config.yaml": (b"command: {cmd: x}\n", 0o600)}, {"id": job, "user": store.user, "name": "train", **facts}


def _worker_ended(worker: int) -> tuple[str, dict[str, JsonValue]]:
    return "worker-ended", {"attempt": 1, "worker": worker, "code": 0, "reason": ""}


_WORKERS: list[JsonValue] = [
    {"index": index, "address": "127.0.0.1", "details": {"home": f"/somewhere/worker-{index}"}} for index in range(4)
]
_EVENTS: list[tuple[str, dict[str, JsonValue]]] = [
    ("state-changed", {"to": "provisioning", "why": "requesting v4-8 from local"}),
    ("allocation-requested", {"name": "train", "allocator": "local"}),
    ("allocated", {"allocation": {"name": "train", "transport": "local", "workers": _WORKERS}, "saved_state": None}),
    ("state-changed", {"to": "setting-up", "why": "setting up the workers"}),
    ("attempt-started", {"attempt": 1, "stage": 0, "workers": [0, 1, 2, 3], "output_dir": "/out", "resume": False}),
    ("state-changed", {"to": "running", "why": "attempt 1"}),
    *[_worker_ended(worker) for worker in range(4)],
    ("attempt-ended", {"attempt": 1, "failure": None}),
    ("state-changed", {"to": "succeeded", "why": "", "release_at": None}),
    ("released", {}),
]
