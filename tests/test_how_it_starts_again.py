"""`tpux resume` and `tpux rerun`: when the next attempt starts, from what, and that all messages say so."""

from __future__ import annotations

import errno
import json
import shutil
from typing import get_args
from unittest.mock import Mock

import pytest

from tests.world import World
from tpux.cli.restart import _restart
from tpux.cli.restart_request import request_restart
from tpux.model.events import ConfigChanged
from tpux.model.states import RequestAction
from tpux.store import files, requests

TELLS = (
    "command:\n"
    "  checkpoint: ckpt\n"
    "  cmd: 'touch $TPUX_OUTPUT_DIR/ckpt; echo $TPUX_STAGE $TPUX_RESUME; [ $TPUX_ATTEMPT -ge 3 ] || exit 3'\n"
)
BLOCKING = """
    from tpux import hookimpl, sh

    @hookimpl
    def check():
        yield sh("test ! -e block")

    @hookimpl
    def setup():
        yield sh("while [ -e block ]; do sleep 0.1; done")
"""
FAILS_FIRST = "job: {rule: resume, max_restarts: {program: 1}}\n"


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def events(world: World, kind: str) -> list:
    return [event for event, _ in world.controller.record.events() if event.type == kind]


def whys(world: World) -> list[str]:
    """Return what the job says about its starts."""
    every = [event for kind in ("state-changed", "waiting") for event in events(world, kind)]
    return [event.why for event in sorted(every, key=lambda event: event.at) if "(attempt" in event.why]


def fail_once(world: World) -> None:
    """Let the first attempt leave a checkpoint and fail."""
    world.create(TELLS)
    world.until("failed")
    assert world.output() == "0 0\n"


def stop_before_the_attempt(world: World, **options) -> None:
    world.until("pending")
    world.request("stop", **options)
    world.until("stopped")
    assert world.state.attempt == 1


@pytest.mark.parametrize(
    ("action", "says", "output"), [("resume", "resuming", "1 1\n"), ("rerun", "rerunning", "0 0\n")]
)
def test_a_job_in_its_backoff_starts_at_once(world, action, says, output):
    world.create(FAILS_FIRST + TELLS)
    world.until("recovering")
    ahead = world.clock.ahead
    world.request(action)
    world.until("setting-up")
    assert world.clock.ahead == ahead, "nothing was waited for"
    world.until("failed")
    assert world.output(attempt=2) == output
    assert [event.backoff_skipped for event in events(world, "request-accepted")] == [True]
    assert whys(world) == ["resuming (attempt 2) in 10 s", f"{says} (attempt 2)"]


def test_the_command_says_which_attempt_starts_now(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "0.1"  # the backoff lasts longer than the commands take, even on a busy machine
    job = tpux.create(FAILS_FIRST + "command: {cmd: 'echo $TPUX_RESUME; exit 3'}\n")
    tpux.until_state(job, "recovering")
    assert "rerun requested, starts now" in tpux("rerun", job).stderr
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"0\n")
    assert "backoff skipped" in tpux("show", job, "--events").stdout


def test_a_resume_withdraws_a_rerun_that_was_stopped_before_its_attempt(world):
    fail_once(world)
    world.request("rerun")
    stop_before_the_attempt(world)
    world.request("resume")
    world.until(lambda: world.state.state == "failed" and world.state.attempt == 2)
    assert world.output(attempt=2) == "1 1\n"
    assert whys(world) == ["rerunning (attempt 2)", "resuming (attempt 2)"]
    assert [event.resume for event in events(world, "attempt-started")] == [False, True]


def test_a_resume_withdraws_the_rerun_of_a_rule_in_its_backoff(world):
    world.create("job: {rule: rerun, max_restarts: {program: 1}}\n" + TELLS)
    world.until("recovering")
    world.request("resume")
    world.until("failed")
    assert world.output(attempt=2) == "1 1\n"
    assert whys(world)[1:] == ["resuming (attempt 2)"]


def test_a_reboot_before_the_attempt_of_a_rerun_starts_from_scratch(world):
    fail_once(world)
    world.request("rerun")
    stop_before_the_attempt(world, keep_for=600)
    world.request("resume")
    world.until(lambda: world.state.state == "failed" and world.state.attempt == 2)
    assert world.output(attempt=2) == "0 0\n"
    assert whys(world) == ["rerunning (attempt 2)", "rerunning (attempt 2)"]


@pytest.mark.parametrize("action", ["resume", "rerun"])
def test_what_never_ran_is_not_resumed(world, action):
    world.create(TELLS)
    world.request("stop")
    world.until("stopped")
    world.request(action)
    world.until("failed")
    assert whys(world) == ["starting (attempt 1)"]


def test_the_command_says_that_a_rerun_is_replaced(tpux):
    tpux.plugin("tpux-blocking", BLOCKING, entries="blocking = tpux_blocking")
    job = tpux.create("setup: {modules: [blocking]}\ncommand: {cmd: 'echo $TPUX_RESUME; exit 3'}\n")
    tpux("wait", job, code=100)
    block = tpux.machines(job) / "worker-0/block"
    block.touch()
    tpux("rerun", job)
    tpux.until_state(job, "setting-up")
    tpux("stop", job)
    block.unlink()
    said = "its rerun had not begun, and is withdrawn; from scratch: tpux rerun 1"
    assert said in tpux("resume", job).stderr
    tpux("wait", job, code=100)
    assert tpux.output(job, attempt=2) == b"1\n"
    assert said not in tpux("resume", job).stderr


def restart(world: World) -> None:
    """Request a restart of a job that runs, as the command does."""
    world.create("command: {cmd: 'sleep 1000', grace_period: 0}")
    world.until(lambda: world.state.run.running)
    world.request("stop", ("resume", {"skip_setup": True}), keep_for=600)


def test_a_restart_is_one_request(world: World) -> None:
    """There is no moment in which the stop is stored, and the resume is not."""
    restart(world)
    assert [path.name for path in (world.controller.record.directory / "requests").iterdir()] == ["000002.json"]
    world.until(lambda: world.state.run.running and world.state.attempt == 2)
    assert [(each.number, each.action) for each in events(world, "request-accepted")] == [(1, "stop"), (2, "resume")]
    assert not list((world.controller.record.directory / "requests").iterdir())


def test_an_older_supervisor_leaves_a_restart_to_a_newer_one(world: World) -> None:
    """It skips an action that it does not know; of a stop it would apply only that, and lose the resume."""
    restart(world)
    [file] = (world.controller.record.directory / "requests").iterdir()
    assert json.loads(file.read_text())["action"] not in get_args(RequestAction)


def test_a_restart_whose_second_part_is_not_known_is_not_applied_in_half(world: World) -> None:
    restart(world)
    [file] = (world.controller.record.directory / "requests").iterdir()
    stored = json.loads(file.read_text())
    stored["then"]["options"]["of_a_newer_tpux"] = True
    file.write_text(json.dumps(stored))
    world.steps()
    assert world.state.run.running
    assert file.exists()


def test_a_stop_after_a_restart_replaces_its_second_part(world: World) -> None:
    restart(world)
    world.request("stop")
    world.until("stopped")
    world.steps()
    assert (world.state.state, world.state.attempt) == ("stopped", 1)


@pytest.mark.parametrize("action", ["stop", "delete"])
def test_an_ended_job_whose_next_config_is_gone_can_be_stopped(world: World, action: str) -> None:
    """As after a crash of the step that had applied the stop: its start must not be tried before what replaces it."""
    world.create("tpu: {keep_on_failure: 1h}\ncommand: {cmd: 'exit 3'}")
    world.until(lambda: world.state.state == "failed" and world.controller.advance() is not None)
    assert world.state.machines is not None
    world.request("resume", config="configs/gone")
    world.request(action, **({"release": True} if action == "stop" else {}))
    world.until(lambda: world.count("release"))


def test_the_config_of_a_start_is_there_until_what_replaces_it_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("command: {cmd: 'exit 3'}")
    world.until("failed")
    world.steps()
    config = world.controller.record.directory / "configs/new"
    config.mkdir(parents=True)
    world.request("resume", config="configs/new")
    world.request("stop")
    with monkeypatch.context() as patched:
        patched.setattr(type(world.turn), "write", Mock(side_effect=OSError))
        with pytest.raises(OSError, match=r"^$"):
            world.controller.advance()
        assert config.exists()
    world.steps()
    assert not config.exists()


def test_a_stop_after_a_restart_keeps_the_machines_no_longer_than_the_config_says(world: World) -> None:
    restart(world)
    world.request("stop")
    world.until("stopped")
    assert world.state.last_request.get("keep_for", 0.0) == 0.0


def test_the_config_of_a_request_that_is_stored_stays_although_writing_it_raised(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.create("command: {cmd: 'exit 3'}")
    world.until("failed")
    record = world.controller.record
    config = record.directory / "configs/new"
    config.mkdir(parents=True)
    written = files.write_atomic

    def write(path, data, **options):
        written(path, data, **options)
        if path.parent.name == "requests":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "write_atomic", write)
    with pytest.raises(OSError, match="Input/output"):
        request_restart("resume", [record.id], configs={record.id: "configs/new"})
    assert [request.config for request in requests.pending(record)] == ["configs/new"]
    assert config.exists()


def test_the_config_that_a_job_has_by_now_stays_when_the_start_that_brought_it_is_replaced(world: World) -> None:
    """As after a crash between the change of the config and that of the state, and a stop meanwhile."""
    world.create("command: {cmd: 'exit 3'}")
    world.until("failed")
    world.steps()
    record = world.controller.record
    name = "configs/new"
    (record.directory / name).mkdir(parents=True)
    for file in ("config.yaml", "resolved.json", "secrets.json"):
        shutil.copy(record.directory / file, record.directory / name / file)
    world.turn.write(ConfigChanged(config=name, name="job", allocator="cloud", workers=1))
    world.request("resume", config=name)
    world.request("stop")
    world.steps()
    assert not requests.pending(record)
    assert (record.directory / name / "config.yaml").exists()
    world.restart_supervisor()
    world.request("rerun")
    world.until(lambda: world.state.attempt == 2)


def test_a_restart_of_several_that_fails_for_the_ended_ones_says_which_others_continue(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.create("command: {cmd: 'exit 3'}")
    world.until("failed")
    ended = world.store.record(world.job)
    world.create("command: {cmd: 'sleep 1000'}")
    world.until("running")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tpux.cli.restart.request_restart", fail)
        patched.setattr("tpux.supervisor.client.ensure_running", lambda *_: None)
        patched.setattr("tpux.supervisor.client.notify", lambda *_: None)
        with pytest.raises(OSError, match="No space left"):
            _restart(world.store, [ended, world.store.record(world.job)], {}, skip_setup=False)
    said = capsys.readouterr().err
    assert f"job {int(world.job)}: the restart is requested, and continues without this command" in said
    world.until(lambda: world.state.attempt == 2 and world.state.state == "running")
    world.request("stop")
    world.until("stopped")
