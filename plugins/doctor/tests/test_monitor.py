"""The monitor of memory and disks, in a job whose workers are directories of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.world import World

from tpux.model.events import Warned
from tpux_doctor import facts

EVERY = 180.0
"""The default of `watch.resources_every`."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.request("delete")
    made.until(lambda: not made.store.record(made.job).directory.exists())


def silent(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.steps(1)
        world.clock.ahead += 1


def start(world: World, output: Path) -> None:
    world.create(f"job: {{output_dir: {output}}}\ncommand: {{cmd: 'echo one; exec sleep 1000', grace_period: 0}}")
    world.until(lambda: world.state.run.running)


def test_low_memory_and_a_full_disk_are_reported_once(
    world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    elsewhere = next(path for path in ("/dev/shm", "/run") if os.path.ismount(path))
    output = Path(tempfile.mkdtemp(dir=elsewhere))
    request.addfinalizer(lambda: shutil.rmtree(output))
    world.cloud.workers = 1
    start(world, output)

    def written() -> list[Warned]:
        return [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]

    silent(world, 10)
    assert written() == []
    monkeypatch.setattr(facts, "LOW_MEMORY", 101.0)
    monkeypatch.setattr(facts, "FULL_DISK", 0.0)
    world.clock.ahead += EVERY
    world.until(lambda: "available" in world.state.why)
    assert world.state.why.startswith("attempt 1: worker 0: memory: ")
    [memory, *disks] = written()
    assert (memory.kind, memory.workers) == ("memory", (0,))
    assert disks
    assert all(event.kind.startswith("disk /") and event.text.endswith(" free") for event in disks)
    assert f"disk {elsewhere}" in [event.kind for event in disks], "that of the output directory"
    monkeypatch.setattr(facts, "LOW_MEMORY", 0.0)
    monkeypatch.setattr(facts, "FULL_DISK", 101.0)
    world.clock.ahead += EVERY
    world.until(lambda: world.state.why == "attempt 1")
    monkeypatch.setattr(facts, "LOW_MEMORY", 101.0)
    world.clock.ahead += EVERY
    world.until(lambda: "available" in world.state.why)
    monkeypatch.setattr(facts, "FULL_DISK", 0.0)
    world.restart_supervisor()
    world.until(lambda: world.state.why == "attempt 1")
    world.clock.ahead += EVERY
    world.until(lambda: "available" in world.state.why)
    assert len(written()) == 1 + len(disks)


@pytest.fixture
def hang() -> Iterator[Callable[[Path], None]]:
    """Return how to mount a file system that does not answer, as a bucket whose daemon hangs."""
    if os.geteuid() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("only root may mount, and needs /dev/fuse")
    kernel = os.open("/dev/fuse", os.O_RDWR)
    mounted: list[Path] = []

    def mount(at: Path) -> None:
        options = f"fd={kernel},rootmode=40000,user_id=0,group_id=0"
        # No type of a remote file system, which `diagnose` would report in a test that runs at the same time.
        subprocess.run(["mount", "-i", "-t", "fuse.portal", "-o", options, "hung", at], pass_fds=[kernel], check=True)
        mounted.append(at)

    yield mount
    os.close(kernel)  # all that wait for it get an error
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("linked", [False, True])
def test_an_output_directory_that_hangs_does_not_delay_the_job(
    world: World, hang: Callable[[Path], None], linked: bool
) -> None:
    bucket, output = world.path / "bucket", world.path / "output"
    bucket.mkdir()
    if linked:
        output.symlink_to(bucket)
    world.create(
        f"job: {{output_dir: {output if linked else bucket}}}\n"
        "command: {cmd: 'echo begin; until [ -e ~/go ]; do sleep 0.05; done'}"
    )
    world.until(lambda: world.state.run.running and world.output() and world.output(1))
    hang(bucket)
    world.clock.ahead += EVERY  # each machine is asked
    world.steps()
    for worker in range(2):
        (world.cloud.root / "1" / str(worker) / "go").touch()
    world.until("succeeded")


def test_the_disks_of_outputs_on_several_are_told_apart(
    world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What is read of this machine is read once for all jobs, but not for those that write to another disk."""
    elsewhere = next(path for path in ("/dev/shm", "/run") if os.path.ismount(path))
    other = Path(tempfile.mkdtemp(dir=elsewhere))
    request.addfinalizer(lambda: shutil.rmtree(other))
    (world.path / "link").symlink_to(other)
    monkeypatch.setattr(facts, "LOW_MEMORY", 0.0)
    monkeypatch.setattr(facts, "FULL_DISK", 0.0)
    told = list[set[str]]()
    for output in (world.path, other, world.path / "link", world.path):
        if told:
            world.request("delete")
            world.until(lambda: not world.store.record(world.job).directory.exists())
        world.create(f"job: {{output_dir: {output}}}\ncommand: {{cmd: sleep 1000, grace_period: 0}}")
        world.until(lambda: world.state.run.running)
        world.clock.ahead += EVERY
        world.until(lambda: world.state.why != "attempt 1")
        events = [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]
        told.append({event.kind for event in events})
    assert [f"disk {elsewhere}" in each for each in told] == [False, True, True, False]
