"""Jobs whose stored config an installed tpux of another version refuses: they can be seen, stopped and released."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.world import World
from tpux.errors import TpuxError
from tpux.supervisor.errors import handle_error

CONFIG = """job: {name: old}
tpu: {release: created}
command: {cmd: sleep 1000, grace_period: 0}
watch: {poll_every: 1s}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def refuse(directory: Path, section: str, key: str = "obsolete") -> None:
    """Store a key that the installed tpux does not know."""
    resolved = json.loads((directory / "resolved.json").read_text())
    resolved["config"].setdefault(section, {})[key] = 1
    (directory / "resolved.json").write_text(json.dumps(resolved))
    text = (directory / "config.yaml").read_text()
    (directory / "config.yaml").write_text(text.replace(f"{section}: {{", f"{section}: {{{key}: 1, "))


def step(world: World) -> None:
    """Advance the job as a supervisor does."""
    try:
        world.clock.ahead += min(world.controller.advance() or 0.0, 0.1)
        world.controller.errors.problems = 0
    except TpuxError as error:
        world.clock.ahead += handle_error(world.controller, error) or 0.0


def until(world: World, state: str) -> None:
    for _ in range(3000):
        if world.state.state == state:
            return
        step(world)
    raise AssertionError(world.state)


@pytest.mark.parametrize("section", ["job", "tpu", "command", "watch"])
def test_a_running_job_is_stopped_and_its_machines_are_released(world: World, section: str) -> None:
    world.create(CONFIG)
    world.until(lambda: world.state.run.running)
    refuse(world.controller.record.directory, section)
    world.restart_supervisor()
    step(world)
    assert world.state.state == "running", "its program runs well"
    assert f"section '{section}' of this job is not valid" in world.state.why
    assert "obsolete" in world.state.why
    assert (
        world.state.hint
        == "stop it, and start it with a corrected config: tpux stop 1, then tpux resume 1 --config FILE"
    )
    world.request("stop")
    until(world, "stopped")
    assert {ending.code for ending in world.state.endings.values()} == {143}
    world.request("delete")
    for _ in range(100):
        if not world.controller.record.directory.exists():
            break
        step(world)
    assert not world.controller.record.directory.exists()
    assert not world.cloud.up


@pytest.mark.system
def test_commands_for_such_a_job(tpux) -> None:
    job = tpux.create("job: {name: old}\ncommand: {cmd: exit 3}\n")
    tpux("wait", job, code=100)
    tpux("supervisor", "stop")
    refuse(tpux.directory(job), "command")
    shown = tpux("show", job).stdout
    assert "failed" in shown
    assert "old" in tpux("list").stdout
    refused = tpux("resume", job, code=2).stderr
    assert "job.yaml:2:11: unknown key 'command.obsolete'" in refused
    assert f"hint: correct it: tpux resume {int(job)} --config FILE" in refused
    assert "job.yaml:2:11: unknown key" in tpux.show(job)["why"]
    tpux("stop", job, "--release")
    tpux("resume", job, "--config", tpux.config("command: {cmd: echo fixed}\n", "fixed.yaml"))
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"fixed\n"
    directory = tpux.directory(job)
    [current] = directory.glob("configs/*")
    refuse(current, "command")
    tpux("delete", "-y", job)
    assert not directory.exists()
