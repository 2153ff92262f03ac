"""Where the tries of a module's set-up begin, and what they count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.world import World
from tpux import Steps, TpuxError, hookimpl, put, sh
from tpux.remote import steps as remote_steps
from tpux_testing import run_job


class Installer:
    """A module with a file that its second step removes, and a third step that fails some times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    @hookimpl
    def check(self) -> Steps:
        yield sh("test -e installed")

    @hookimpl
    def setup(self) -> Steps:
        found = yield sh("echo find >>steps; wc -l <steps")
        yield put(b"secret", "token")
        yield sh("rm token; echo get >>steps")
        yield put(found.output, "found")
        yield sh("cat found; rm found; echo install >>steps; [ $(grep -c install steps) -gt {n} ]", n=self.failures)
        yield sh("echo end >>steps; touch installed")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (0, "find get install end"),
        (1, "find get install install end"),
        (2, "find get install install find get install end"),
    ],
)
def test_every_other_try_begins_at_the_step_that_failed(failures, expected):
    config = {
        "setup": {"modules": ["installer"]},
        "command": {"cmd": "echo $(cat steps); ls -d installed token found 2>/dev/null; true"},
    }
    ran = run_job(config, plugins={"installer": Installer(failures)})
    assert ran.state == "succeeded", ran.why
    steps, *files = ran.output[0].splitlines()
    assert steps == expected
    assert files == ["installed"], "the file of a step that is not run again is not copied again"
    log = ran.logs["installer_worker_0.log"]
    assert log.count("$ echo find") == expected.count("find"), "what was not run again is not logged again"


def test_a_set_up_whose_check_fails_begins_at_its_first_step():
    class Unfinished(Installer):
        @hookimpl
        def check(self) -> Steps:
            yield sh("[ $(grep -c end steps) = 2 ]")

    config = {"setup": {"modules": ["installer"]}, "command": {"cmd": "echo $(cat steps)"}}
    ran = run_job(config, plugins={"installer": Unfinished(0)})
    assert ran.state == "succeeded", ran.why
    assert ran.output[0] == "find get install end find get install end\n"


def test_a_check_that_fails_after_each_set_up_is_told_from_a_step_of_the_set_up():
    class Unfinished(Installer):
        @hookimpl
        def check(self) -> Steps:
            yield sh("false")

    ran = run_job({"setup": {"modules": ["installer"]}}, plugins={"installer": Unfinished(0)})
    assert ran.why == "installer: not ready after its set-up: `false` exited with 1: no output"


class Counted:
    """A module whose set-up is counted on each worker."""

    @hookimpl
    def check(self) -> Steps:
        yield sh("test -e counted-once")

    @hookimpl
    def setup(self) -> Steps:
        yield sh("echo setup >>counted; touch counted-once")


def home(world: World, worker: int) -> Path:
    return world.cloud.root / "1" / str(worker)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.plugins.add("counted", Counted())
    world.create("setup: {modules: [counted]}\ncommand: {cmd: 'cat counted'}\n")
    world.until(lambda: world.state.state == "setting-up")
    return world


@pytest.mark.parametrize(
    ("path", "what"), [(".tpux/runs", "counted"), (f".tpux-{os.getuid()}", "machine")], ids=["step", "claim"]
)
def test_a_worker_on_whose_disk_nothing_can_be_written_fails_its_set_up(counted, path, what):
    (home(counted, 1) / path).parent.mkdir(exist_ok=True)
    (home(counted, 1) / path).touch()  # no file can be created below it, not even by root
    failure = counted.until("failed").failure
    assert (failure.kind, failure.worker) == ("setup", 1)
    assert failure.evidence.startswith(f"{what}: a tpux script failed on the worker: ")
    assert "tpux exec 1 --host --worker 1 -- df -h . /tmp; then: tpux resume 1" in failure.hint
    assert (home(counted, 0) / "counted").read_text() == "setup\n", "the other worker is not disturbed"
    assert "retrying" not in (counted.controller.record.directory / "events.jsonl").read_text()


def test_a_try_that_finds_space_again_succeeds(counted):
    runs = home(counted, 1) / ".tpux/runs"
    runs.parent.mkdir()
    runs.touch()
    log = counted.controller.record.logs / "counted_worker_1.log"
    counted.until(lambda: log.exists() and "try 2: setup" in log.read_text())
    runs.unlink()
    counted.until("succeeded")
    assert [counted.output(worker) for worker in (0, 1)] == ["setup\n", "setup\n"]


def test_a_step_whose_worker_fails_for_a_moment_is_ended_before_the_next_try(tmp_path, monkeypatch):
    class Install:
        @hookimpl
        def setup(self):
            yield sh("echo fetched >>fetched")
            yield sh("echo $$ >>pids; [ $(wc -l <pids) = 2 ] || exec sleep 1000")

    world = World(tmp_path, monkeypatch)
    world.plugins.add("install", Install())
    world.cloud.workers = 1
    pids, failed = home(world, 0) / "pids", []
    poll = remote_steps.poll

    def fail_once(host, run, offset):
        if pids.exists() and not failed:
            failed.append(run)
            raise TpuxError("a tpux script failed on the worker: fork: Resource temporarily unavailable")
        return poll(host, run, offset)

    monkeypatch.setattr(remote_steps, "poll", fail_once)
    world.create("setup: {modules: [install]}\ncommand: {cmd: 'exec sleep 1000', grace_period: 0.2s}\n")
    world.until(lambda: world.state.run.running)
    first, _ = map(int, pids.read_text().split())
    status = Path(f"/proc/{first}/stat")
    ended = not status.exists() or ") Z" in status.read_text()
    world.request("stop")
    world.until("stopped")
    assert failed
    assert ended, "the same install would run twice at once"
    assert (home(world, 0) / "fetched").read_text() == "fetched\n", "what had succeeded is not done again"
