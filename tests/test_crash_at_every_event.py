"""A supervisor that dies before or after any event that it writes: the next one continues the job.

kill -9 (test_supervisor_killed.py) rarely falls between two events; here every such gap is tested, in one process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tpux_local
from tpux import MachineStatus, hookimpl, sh
from tpux.clock import SystemClock
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.create import create_job
from tpux.model.events import Event
from tpux.plugin.manager import Plugins
from tpux.store import Store, events, requests
from tpux.store.state import State

CONFIG = """
tpu: {allocation_mode: patient, accelerator: v4-16, pricing: spot}
setup: {modules: [brew]}
patient: {preempt_after: 0.3s}
command:
  cmd: |
    echo start $TPUX_ATTEMPT $TPUX_RESUME >> STARTS/command-$TPUX_WORKER
    echo out $TPUX_ATTEMPT
    [ $TPUX_ATTEMPT = 2 ] || sleep 1000
  grace_period: 1s
"""


REPEATABLE = {"waiting", "allocation-requested", "allocated", "release-started", "released"}
"""The types of events that a supervisor may write again if the one before it died; all others happen once."""
TWICE = ["provisioning", "setting-up", "running"]
"""States that are entered once before the preemption and once after it."""


class KilledError(BaseException):
    """Simulates kill -9: nothing in tpux catches it."""


class Brew:
    """A module whose setup counts how often it runs."""

    def __init__(self, starts: Path) -> None:
        self.starts = starts

    @hookimpl
    def check(self):
        yield sh("test -e brewed")

    @hookimpl
    def setup(self, worker):
        yield sh("touch brewed; echo {n} >> {file}", n=worker.index, file=self.starts / "brew")


class Patient:
    """The allocator `local`, which preempts only after the first attempt's output."""

    config_section = staticmethod(tpux_local.config_section)
    tpu_section = staticmethod(tpux_local.tpu_section)
    provision = staticmethod(tpux_local.provision)
    release = staticmethod(tpux_local.release)

    @hookimpl
    def inspect(self, request):
        logs = [request.directory.parent / f"logs/attempt-1/command_worker_{worker}.log" for worker in (0, 1)]
        if all(log.exists() and log.read_text().startswith("out 1\n") for log in logs):
            return tpux_local.inspect(request)
        return MachineStatus("ready", poll_after=0.1)


class Announcing(Patient):
    """The allocator `local` whose workers get a notice when a program asks for it; its API says ready all the time."""

    @staticmethod
    @hookimpl
    def provision(request):
        ready = tpux_local.provision(request)
        notice = 'until [ -e "$HOME/announced" ]; do sleep 0.02; done; echo as asked'
        return replace(ready, allocation=replace(ready.allocation, notice=notice))

    @hookimpl
    def inspect(self):
        return MachineStatus("ready", poll_after=0.1)


class World:
    """One job, and supervisors that live until they are killed."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.starts = tmp_path / "starts"
        self.starts.mkdir()
        config = tmp_path / "job.yaml"
        config.write_text(text.replace("STARTS", str(self.starts)))
        monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
        self.plugins = Plugins()
        self.plugins.add("brew", Brew(self.starts))
        self.plugins.add("patient", Patient())
        self.plugins.add("announcing", Announcing())
        monkeypatch.setattr("tpux.lifecycle.create.Plugins", lambda: self.plugins)
        self.store = Store()
        self.job = create_job(self.store, config, [], warn=print).directory.name
        self.written: list[str] = []

    @property
    def directory(self) -> Path:
        return self.store.record(self.job).directory

    def state(self) -> State:
        return self.store.record(self.job).refresh()

    def live(self, until: str | Callable[[], bool] = "nothing is left to do") -> bool:
        """Run a supervisor; return False if it was killed before the job was in that state."""
        record = self.store.record(self.job)
        assert record.acquire()
        controller = JobController(self.store, record, self.plugins, SystemClock())
        deadline = time.monotonic() + 60
        try:
            while (delay := controller.advance()) is not None:
                if record.state.state == until or (callable(until) and until()):
                    return True
                assert time.monotonic() < deadline, record.state
                time.sleep(min(delay, 0.1))
        except KilledError:
            while controller.workers.threads.busy():  # these threads would have died with the process
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return False
        finally:
            record.lock.release()
        return True

    def history(self) -> list[str]:
        return [_named(event) for event, _ in events.read(self.directory / "events.jsonl")]


def _named(event: Event) -> str:
    """Return what tells an event from the others: with its attempt, so that each attempt's are died at."""
    facts = event.to_json()
    return " ".join(str(facts[key]) for key in ("type", "to", "attempt", "worker", "action") if key in facts)


def die(monkeypatch: pytest.MonkeyPatch, world: World, when: str) -> None:
    """Die once at each event that was not written before."""
    write = events.append

    def append(path, event):
        name = _named(event)
        new = name not in world.written
        world.written.append(name)
        if new and when == "before":
            raise KilledError
        length = write(path, event)
        if new and when == "after":
            raise KilledError
        return length

    monkeypatch.setattr(events, "append", append)


ANNOUNCED = (
    CONFIG.replace("patient, acc", "announcing, acc")
    .replace("patient: {preempt_after: 0.3s}\n", "")
    .replace("|| sleep 1000", "|| { : >announced; trap 'exit 0' TERM; while :; do sleep 0.02; done; }")
)


ONE_SLICE = (
    CONFIG.replace("accelerator: v4-16", "accelerator: v4-8, node_count: 2")
    .replace("preempt_after: 0.3s", "preempt_after: 0.3s, preempt_slices: [1]")
    .replace("|| sleep 1000", "|| { trap 'echo saved; exit 0' TERM; while :; do sleep 0.02; done; }")
)


@pytest.mark.parametrize(
    "config",
    [CONFIG, ANNOUNCED, ONE_SLICE],
    ids=["at once", "announced", "one slice"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_preempted_job(tmp_path, monkeypatch, when, config):
    world = World(tmp_path, monkeypatch, config)
    die(monkeypatch, world, when)
    while not world.live():
        assert len(world.written) < 200, world.written
    state = world.state()
    assert (state.state, state.attempt, state.stage, state.preemptions) == ("succeeded", 2, 1, 1)
    assert state.restarts == {"preempted": 1}
    for worker in (0, 1):
        assert (world.starts / f"command-{worker}").read_text() == "start 1 0\nstart 2 1\n"
        for attempt in (1, 2):
            log = world.directory / f"logs/attempt-{attempt}/command_worker_{worker}.log"
            saved = "saved\n" if (config, worker, attempt) == (ONE_SLICE, 0, 1) else ""
            assert log.read_text().replace("Terminated\n", "") == f"out {attempt}\n{saved}"
    assert sorted((world.starts / "brew").read_text().split()) == ["0", "0", "1", "1"]
    counts = Counter(world.history())
    assert counts["released 1"], "for new machines"
    assert {event.partition(" ")[0] for event in counts if counts[event] > 1} <= REPEATABLE
    entered = Counter(event.split()[1] for event in world.history() if event.startswith("state-changed "))
    assert [entered[state] for state in TWICE] == [2, 2, 2]


WAITS = """
tpu: {accelerator: v4-16}
setup: {modules: [brew]}
command:
  cmd: |
    trap 'echo bye; exit 0' TERM
    echo previous=$TPUX_PREVIOUS_OUTPUT_DIR
    while :; do sleep 0.05; done
  grace_period: 5s
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_stop_resume_and_delete(tmp_path, monkeypatch, when):
    world = World(tmp_path, monkeypatch, WAITS)
    die(monkeypatch, world, when)

    def until(action: str, state: str) -> None:
        if action:
            requests.write(world.store.record(world.job), action)
        while world.state().state != state and len(world.written) < 200:
            world.live(until=state)

    until("", "running")
    log = world.directory / "logs/attempt-1/command_worker_1.log"
    while not (log.exists() and b"previous" in log.read_bytes()):
        world.live(until=lambda: log.exists() and b"previous" in log.read_bytes())
    until("stop", "stopped")
    assert log.read_text().endswith("bye\n"), "its final output was fetched"
    until("resume", "running")
    state = world.state()
    assert (state.attempt, state.stage) == (2, 1)
    assert state.run.previous_output_dir == f"{world.directory}/output/attempt-1"
    until("stop", "stopped")
    stops = [event for event in world.history() if event.startswith("state-changed stopped ")]
    assert stops == ["state-changed stopped 1", "state-changed stopped 2"]
    until("rerun", "running")
    assert (world.state().attempt, world.state().stage, world.state().run.resume) == (3, 0, False)
    requests.write(world.store.record(world.job), "delete")
    while world.directory.exists():
        world.live()
        assert len(world.written) < 200, world.written
