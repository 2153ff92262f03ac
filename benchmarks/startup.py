"""How fast the command is there: `tpux --help`, and `tpux list` with 1,000 stored jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.measure import Row, at_most, cpu, in_turns, ratio
from benchmarks.world import TPUX, World, world
from tpux.plugin.machines import JsonValue
from tpux.store import Files, Store

JOBS = 1000
LIVE = 5
ROUNDS = 15
HELLO: list[str | Path] = [sys.executable, Path(__file__).with_name("hello.py")]


def rows() -> list[Row]:
    """CPU of the command, as a multiple of a bare typer hello-world's; no supervisor start is counted."""
    with world() as one:
        fill(one.store, JOBS)
        idle = measure(one)
        live(one)
        pid = one.start()
        with_live = measure(one)
        assert pid == one.start(), "the supervisor must be there before and after"
    (hello, helped, listed), (hello_again, _, listed_live) = idle, with_live
    floor = f"hello-world {1000 * median(hello):.0f} ms"
    return [
        at_most("CPU of `tpux --help` / a typer hello-world's", ratio(helped, hello), 1.5, note=floor),
        at_most(f"CPU of `tpux list`, {JOBS:,} ended jobs / the same", ratio(listed, hello), 2.5),
        at_most(f"the same, {LIVE} of them live", ratio(listed_live, hello_again), 2.5),
    ]


def measure(one: World) -> list[list[float]]:
    """CPU seconds of the hello-world, of the help and of the list, in turns."""
    return in_turns(
        ROUNDS, lambda: cpu(HELLO), lambda: cpu([TPUX, "--help"], one.env), lambda: cpu([TPUX, "list"], one.env)
    )


def fill(store: Store, count: int) -> None:
    """Jobs that ran on four workers and succeeded, as the store keeps them."""
    with patch("os.fsync"):  # 15,000 of them would take minutes, and nothing here must survive a crash
        for _ in range(count):
            record = store.create(lambda job: _content(store, job), at=time.time())
            if not record.acquire():
                raise RuntimeError("somebody holds the lock of a new job")
            for kind, facts in _STORY:
                record.write(kind, time.time(), **facts)
            record.lock.release()


def live(one: World) -> None:
    """Jobs that wait at a gate."""
    gate = one.gate("gate")
    one.create(one.config(f"command: {{cmd: ': < {gate.path}'}}\n"), LIVE)


def _content(store: Store, job: str) -> tuple[Files, Mapping[str, JsonValue]]:
    facts: dict[str, JsonValue] = {"accelerator": "v4-32", "zone": "us-central2-b", "allocator": "local", "workers": 4}
    return {"config.yaml": (b"command: {cmd: x}\n", 0o600)}, {"id": job, "user": store.user, "name": "train", **facts}


def _worker_ended(worker: int) -> tuple[str, dict[str, JsonValue]]:
    return "worker-ended", {"attempt": 1, "worker": worker, "code": 0, "reason": ""}


_WORKERS: list[JsonValue] = [
    {"index": index, "address": "127.0.0.1", "details": {"home": f"/somewhere/worker-{index}"}} for index in range(4)
]
_STORY: list[tuple[str, dict[str, JsonValue]]] = [
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
