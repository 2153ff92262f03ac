"""The monitor of checkpoints: a job that has saved one before and saves no new one is reported while it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gcs import Bucket
from tests.world import World

from tpux import TpuxError
from tpux.model.events import Warned
from tpux.store import monitored

CONFIG = """
job: {rule: resume, max_restarts: {program: 1}, output_dir: 'OUTPUT'}
setup: {modules: [bucket]}
watch: {resources_every: 60s}
plugins: {disabled: [doctor, libtpu]}
command:
  cmd: |
    until [ -e ~/fail ]; do sleep 0.05; done; rm ~/fail; exit 3
  checkpoint: 'ckpt-*'
  grace_period: 0
"""
HOUR = 3600.0


@pytest.fixture(autouse=True)
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpux_storage.expected.monotonic", world.clock.monotonic)


@pytest.fixture(params=["path", "url"])
def output(request: pytest.FixtureRequest, bucket: Bucket, world: World) -> Iterator[tuple[str, Path]]:
    """Give the job an output directory, and where this process sees it."""
    where = bucket.root / "runs/a"
    yield ("gs://runs/a" if request.param == "url" else str(where)), where
    world.request("delete")
    world.until(lambda: not world.store.record(world.job).directory.exists())


def start(world: World, output: tuple[str, Path], *changes: tuple[str, str]) -> None:
    text = CONFIG.replace("OUTPUT", output[0])
    for old, new in changes:
        text = text.replace(old, new)
    world.create(text)
    world.until(lambda: world.state.run.running)


def save(world: World, output: tuple[str, Path], name: str, at: float | None = None) -> None:
    """Save a checkpoint of the current attempt."""
    job, attempt = world.state.run.output_dir.split("/")[-2:]
    path = output[1] / job / attempt / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    if at is not None:
        os.utime(path, (at, at))


def later(world: World, seconds: float, shown: str) -> None:
    """Let time pass until the monitor says something that matches a pattern; on a slow machine more time passes."""
    settle(world)
    world.clock.ahead += seconds
    world.until(lambda: any(re.search(shown, text) for text in found(world)))
    world.steps(2)


def settle(world: World) -> None:
    """Let a search that has begun end: it may have begun before the last checkpoint was saved, and the next is due
    only when time passes."""
    world.until(lambda: world.controller.phase._monitors.next_at > world.clock.monotonic())


def found(world: World) -> list[str]:
    by_worker = monitored.load(world.controller.record.directory, world.state)
    return [finding.message for findings in by_worker.values() for finding in findings]


def warnings(world: World) -> list[str]:
    events = [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]
    return [event.text for event in events if event.kind == "checkpoint"]


def test_a_job_that_saves_no_new_checkpoint_is_reported_once(world: World, output: tuple[str, Path]) -> None:
    start(world, output)
    save(world, output, "ckpt-1/state/a")
    later(world, 60, "the last new checkpoint was found 0 min ago")
    later(world, HOUR - 120, "5[89] min ago")
    assert (warnings(world), world.state.why) == ([], "attempt 1")
    text = r"no new checkpoint ckpt-\* for 6\d min, expected every 60 min \(watch\.checkpoint_expected\)"
    later(world, 240, text)
    assert re.fullmatch(f"attempt 1: worker 0: {text}", world.state.why)
    later(world, 600, r"for 7\d min")
    assert [bool(re.fullmatch(text, warning)) for warning in warnings(world)] == [True], "once in an attempt"

    save(world, output, "ckpt-2/state/a")
    later(world, 60, "0 min ago")
    assert world.state.why == "attempt 1"


def test_a_job_that_has_not_saved_any_is_not_reported(world: World, output: tuple[str, Path]) -> None:
    start(world, output)
    settle(world)
    world.clock.ahead += 60
    world.steps(5)
    settle(world)
    save(world, output, "other-1")
    world.clock.ahead += 2 * HOUR
    world.steps(20)
    save(world, output, "ckpt-1")
    later(world, 60, "the last new checkpoint was found")
    assert warnings(world) == []


@pytest.mark.system
def test_a_resumed_job_has_saved_one_before(world: World, output: tuple[str, Path]) -> None:
    start(world, output)
    save(world, output, "ckpt-1")
    (world.cloud.root / "1/0/fail").touch()
    world.until(lambda: world.state.stage == 1 and world.state.run.running)
    later(world, 60, "0 min ago")
    later(world, HOUR + 60, r"no new checkpoint ckpt-\* for 6\d min")


def test_a_checkpoint_that_is_written_again_is_a_new_one(world: World, output: tuple[str, Path]) -> None:
    start(world, output, ("ckpt-*", "last.pt"))
    save(world, output, "last.pt", at=1000.0)
    later(world, 60, "0 min ago")
    later(world, 1200, r"2\d min ago")
    save(world, output, "last.pt", at=2000.0)
    later(world, 60, "0 min ago")


@pytest.mark.parametrize("change", [("60s}", "60s, checkpoint_expected: null}"), ("  checkpoint: 'ckpt-*'\n", "")])
def test_nothing_is_expected(world: World, output: tuple[str, Path], change: tuple[str, str]) -> None:
    start(world, output, change)
    save(world, output, "ckpt-1")
    for _ in range(2):
        world.clock.ahead += 2 * HOUR
        world.steps(20)
    assert found(world) == []


def test_an_expectation_of_no_time_is_refused(world: World) -> None:
    with pytest.raises(TpuxError, match=r"watch\.checkpoint_expected"):
        world.create(CONFIG.replace("60s}", "60s, checkpoint_expected: 0}"))
