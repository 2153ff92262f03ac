"""The hook `monitor`: it ends an attempt, warns, and costs a job nothing if it fails or does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.world import World
from tpux import Attempt, Failure, Finding, Worker, hookimpl, sh
from tpux.lifecycle import monitors
from tpux.model.events import AttemptEnded, Warned
from tpux.store import monitored

CONFIG = """
job: {rule: pass}
watch: {resources_every: 60s}
plugins: {disabled: [doctor]}
command: {cmd: 'until [ -e ~/go ]; do sleep 0.05; done', grace_period: 0}
"""


class Thermometer:
    """Calls what the test has set, with the worker."""

    def __init__(self) -> None:
        self.answer: Callable[[Worker], object] = lambda _: None
        self.asked: list[int] = []

    @hookimpl
    def monitor(self, attempt: Attempt, worker: Worker):
        yield sh("test -d {path}", path=attempt.output_dir)
        read = yield sh("echo 40 degrees")
        self.asked.append(worker.index)
        answer = self.answer(worker)
        if answer == "fails":
            yield sh("echo no sensor; exit 3")
        if answer == "nothing":
            return None
        return [Finding("ok", read.text.strip(), where="temperature")] if answer is None else answer


@pytest.fixture
def thermometer() -> Thermometer:
    return Thermometer()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thermometer: Thermometer) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    made.plugins.add("thermometer", thermometer)
    yield made
    made.request("delete")
    made.until(lambda: not made.store.record(made.job).directory.exists())


def start(world: World, config: str = CONFIG) -> None:
    world.create(config)
    world.until(lambda: world.state.run.running)
    world.clock.ahead += 60


def finish(world: World) -> None:
    for worker in range(2):
        (world.cloud.root / "1" / str(worker) / "go").touch()
    world.until("succeeded")


def tpu_log(world: World) -> str:
    return (world.controller.record.logs / "tpu.log").read_text()


def test_a_failure_that_a_monitor_returns_ends_the_attempt(world: World, thermometer: Thermometer) -> None:
    hot = Failure("infra", evidence="120 degrees")
    thermometer.answer = lambda worker: hot if worker.index == 1 else None
    start(world)
    world.until("failed")
    [ended] = [event for event, _ in world.controller.record.events() if isinstance(event, AttemptEnded)]
    assert ended.failure is not None
    assert (ended.failure.kind, ended.failure.worker, ended.failure.evidence) == ("infra", 1, "120 degrees")


def test_what_monitors_find_is_kept_and_shown(world: World, thermometer: Thermometer) -> None:
    start(world)

    def found() -> dict[int, list[Finding]]:
        return monitored.load(world.controller.record.directory, world.state)

    world.until(lambda: sum(map(bool, found().values())) == 2)  # libtpu's monitor may be the first, and finds nothing
    assert found() == {index: [Finding("ok", "40 degrees", where="temperature")] for index in range(2)}
    thermometer.answer = lambda _: [Finding("warning", "90 degrees", where="temperature")]
    for _ in range(2):  # it is reported once
        world.clock.ahead += 60
        world.until(lambda: world.state.why == "attempt 1: worker 0: 90 degrees (1 more workers)")
    reported = [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]
    assert [event.text for event in reported if event.kind == "temperature"] == ["90 degrees"]
    thermometer.answer = lambda _: "nothing"
    world.clock.ahead += 60
    world.until(lambda: "90 degrees" not in world.state.why)
    assert found() == {0: [], 1: []}
    finish(world)
    assert monitored.load(world.controller.record.directory, world.state) == {}, "of an attempt that has ended"


def boil(_: Worker) -> object:
    raise ValueError("it boils")


@pytest.mark.parametrize(
    ("answer", "report"),
    [
        (boil, "plugin thermometer failed in monitor: ValueError: it boils"),
        (lambda _: "fails", "monitor thermometer: `echo no sensor; exit 3` exited with 3: no sensor"),
        (lambda _: [1], "plugin thermometer gave a wrong answer from monitor: "),
    ],
)
def test_a_monitor_that_fails_is_reported_and_ignored(
    world: World, thermometer: Thermometer, answer: Callable[[Worker], object], report: str
) -> None:
    thermometer.answer = answer
    start(world)
    world.until(lambda: world.state.why.startswith("attempt 1: worker 0: ") and report in world.state.why)
    assert "; continuing without it" in world.state.why
    world.until(lambda: f"worker 1: {report}" in tpu_log(world))
    thermometer.answer = lambda _: None
    world.clock.ahead += 60
    world.until(lambda: world.state.why == "attempt 1")
    finish(world)


def test_a_monitor_that_does_not_return_is_reported_and_the_job_goes_on(
    world: World, thermometer: Thermometer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "HOOK_TIMEOUT", 0.5)
    returns = threading.Event()
    thermometer.answer = lambda _: [][: returns.wait(100)]
    start(world)
    try:
        world.until(lambda: "plugin thermometer has not returned from monitor" in world.state.why)
        asked = len(thermometer.asked)
        world.clock.ahead += 60
        world.steps()
        assert len(thermometer.asked) == asked, "it is not called again before it has returned"
        finish(world)
    finally:
        returns.set()


def test_a_disabled_monitor_is_not_called(world: World, thermometer: Thermometer) -> None:
    start(world, CONFIG.replace("[doctor]", "[doctor, thermometer]"))
    finish(world)
    assert thermometer.asked == []


@pytest.mark.system
def test_a_worker_on_which_something_was_found_is_examined_sooner(world: World, thermometer: Thermometer) -> None:
    world.cloud.workers = 1
    thermometer.answer = lambda _: [Finding("note", "80 degrees", where="temperature")]
    start(world)
    world.until(lambda: len(thermometer.asked) == 1)
    world.clock.ahead += 60 / monitors.SOONER
    world.until(lambda: len(thermometer.asked) == 2)
    (world.cloud.root / "1" / "0" / "go").touch()
    world.until("succeeded")
