"""A job, an allocator whose machines cost money, and a clock that can be advanced, all in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpux import (
    Allocation,
    Denied,
    Failure,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    Waiting,
    Worker,
    hookimpl,
)
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.create import create_job
from tpux.lifecycle.turn import Turn
from tpux.plugin.manager import Plugins
from tpux.store import Store, requests
from tpux.store.state import State


class SetClock:
    """The machine's clock plus an offset. Tests can also set the wall time, and suspend the machine."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.suspended = 0.0
        self.set_forward = 0.0

    def now(self) -> float:
        return time.time() + self.ahead + self.suspended + self.set_forward

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def boottime(self) -> float:
        return time.monotonic() + self.ahead + self.suspended

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds

    def wait(self, event, seconds) -> bool:
        self.ahead += seconds
        return event.is_set()


@dataclass
class Cloud:
    """An allocator whose machines are directories here. Tests change its answers at any time."""

    root: Path
    workers: int = 2
    up: bool = False
    queue: list[Waiting] = field(default_factory=list)
    denied: Failure | None = None
    state: str = "ready"
    calls: list[str] = field(default_factory=list)
    borrowed: bool = False
    costs: bool = True
    notice: str = ""
    storage: bool = True
    generation: int = 0
    poll_after: float = 0.05
    slices: int = 1
    lost: tuple[int, ...] = ()
    confirmed: bool = False
    on_inspect: Callable[[], None] = lambda: None

    @hookimpl
    def provision(self, request: ProvisionRequest):
        self.calls.append("provision")
        if self.denied:
            return Denied(self.denied)
        if self.queue:
            return self.queue.pop(0) if len(self.queue) > 1 else self.queue[0]
        if not self.up:
            self.up, self.state, self.generation = True, "ready", self.generation + 1
        homes = [self.root / str(self.generation) / str(index) for index in range(self.workers)]
        for home in homes:
            home.mkdir(parents=True, exist_ok=True)
        workers = tuple(
            Worker(
                i,
                slice=i * self.slices // self.workers,
                address="127.0.0.1",
                internal_ip="127.0.0.1",
                details={"home": str(home)},
            )
            for i, home in enumerate(homes)
        )
        return Ready(
            Allocation(
                request.name,
                "local",
                workers,
                storage=str(self.root / "out") if self.storage else "",
                borrowed=self.borrowed,
                costs=self.costs,
                notice=self.notice,
                slices=self.slices,
            )
        )

    @hookimpl
    def inspect(self):
        self.calls.append("inspect")
        self.on_inspect()
        if self.state == "error":
            raise OSError("the API does not answer")
        return MachineStatus(
            self.state,
            evidence=f"it is {self.state}",
            poll_after=self.poll_after,
            lost=self.lost,
            confirmed=self.confirmed,
        )

    @hookimpl
    def release(self):
        self.calls.append("release")
        self.up = False
        return Released()


class World:
    """One job with its cloud, advanced step by step in this process."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
        self.path = tmp_path
        self.clock = SetClock()
        self.cloud = Cloud(tmp_path / "cloud")
        self.plugins = Plugins()
        self.plugins.add("cloud", self.cloud)
        self.store = Store()
        self.job = ""
        self.controller: JobController | None = None

    def create(self, text: str) -> None:
        config = self.path / "job.yaml"
        config.write_text(text)
        record = create_job(self.store, config, ["tpu.allocation_mode=cloud"], warn=print, plugins=self.plugins)
        self.job = record.directory.name
        self.restart_supervisor()

    def restart_supervisor(self) -> None:
        """Continue as a new supervisor, which knows only what is on disk."""
        if self.controller:
            self.controller.record.lock.release()
        record = self.store.record(self.job)
        assert record.acquire()
        self.controller = JobController(self.store, record, self.plugins, self.clock)

    @property
    def turn(self) -> Turn:
        """A step of its own, to read the job, or to write an event."""
        return self.controller.begin()

    @property
    def state(self) -> State:
        return self.controller.record.refresh()

    def until(self, state: str | Callable[[], object]) -> State:
        """Advance the job until it is in that state, or a condition holds. Long waits are skipped."""
        deadline = time.monotonic() + 60
        while not (state() if callable(state) else self.state.state == state):
            assert time.monotonic() < deadline, self.state
            delay = self.controller.advance()
            if delay is None:
                assert state() if callable(state) else self.state.state == state, self.state
            elif delay > 1.5 and self.state.state != "running":  # programs run in real time
                self.clock.ahead += delay
            else:
                time.sleep(min(delay, 0.05))
        return self.state

    def steps(self, number: int = 5) -> None:
        for _ in range(number):
            self.controller.advance()

    def request(self, action: str, *then, **options) -> None:
        requests.write(self.controller.record, action, *then, **options)

    def output(self, worker: int = 0, attempt: int = 1) -> str:
        log = self.controller.record.output_log(attempt or self.controller.record.state.attempt, worker)
        return log.read_text() if log.exists() else ""

    def count(self, call: str) -> int:
        return self.cloud.calls.count(call)
