"""What a module's `clean_up` has removed is there again after a resume and a restart, and is removed at each end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.world import World
from tpux import hookimpl, sh

PLUGIN = """
    from tpux import hookimpl, sh

    CHECK = False

    if CHECK:
        @hookimpl
        def check():
            yield sh("test -e key")

    @hookimpl
    def setup():
        yield sh("touch key")

    @hookimpl
    def clean_up():
        yield sh("while [ -e hold ]; do touch held; sleep 0.05; done; rm -f key; echo cleaned >>cleaned")
"""
CONFIG = "setup: {modules: [keys]}\ncommand: {cmd: 'ls key; exit 3'}\njob: {rule: pass}\n"


@pytest.fixture(params=[False, True], ids=["without-check", "with-check"])
def keys(tpux, request):
    tpux.plugin("tpux-keys", PLUGIN.replace("CHECK = False", f"CHECK = {request.param}"), entries="keys = tpux_keys")
    return tpux


@pytest.mark.system
def test_each_start_has_what_the_last_end_has_removed(keys):
    job = keys.create(CONFIG)
    keys("wait", job, code=100)
    keys.until_done()
    home = keys.machines(job) / "worker-0"
    assert not (home / "key").exists()
    for attempt, command in enumerate((["resume"], ["restart", "-y"], ["rerun"]), 2):
        keys(command[0], job, *command[1:])
        keys("wait", job, code=100)
        keys.until_done()
        assert keys.output(job, 0, attempt) == b"key\n", command
        assert not (home / "key").exists()
    assert (home / "cleaned").read_text() == "cleaned\n" * 4
    # A supervisor that sees the secrets of the next start before its request begins it again, without effect.
    assert len(keys.events(job, "clean-up-started")) >= 4


@pytest.mark.system
def test_a_resume_waits_for_the_clean_up(keys):
    job = keys.create(CONFIG.replace("ls key", "ls key; touch hold"))
    home = keys.machines(job) / "worker-0" if keys.directory(job).joinpath("machines").exists() else None
    keys("wait", job, code=100)
    home = home or keys.machines(job) / "worker-0"
    keys.until((home / "held").exists, "for the clean-up")
    assert "once its workers are cleaned up" in keys("resume", job).stderr
    assert keys.show(job)["attempt"] == 1
    (home / "hold").unlink()
    keys.until(lambda: keys.show(job)["attempt"] == 2)
    keys("wait", job, code=100)
    assert keys.output(job, 0, 2) == b"key\n"
    (home / "hold").unlink()
    keys.until_done()


@pytest.mark.system
def test_a_failed_set_up_is_cleaned_up_and_a_successful_one_stays(keys):
    job = keys.create(CONFIG.replace("ls key; exit 3", "sleep 1000"))
    keys.until_state(job, "running")
    keys("stop", job)
    keys.until_done()
    home = keys.machines(job) / "worker-0"
    keys("setup", job)
    keys.until_done()
    assert (home / "key").exists()
    (home / "key").unlink()
    (home / "key").mkdir()
    (home / "key/file").touch()
    keys("rerun", job)
    keys.until_state(job, "running")
    keys("restart", job, "-y")
    keys.until(lambda: keys.show(job)["attempt"] == 3 and keys.show(job)["state"] == "running")
    assert (home / "cleaned").read_text() == "cleaned\n", "not between the two parts of a restart"
    keys("stop", job)
    keys.until_done()


class Keys:
    """A module without a check, whose clean-up lasts as long as there is a file `hold`."""

    def __init__(self, first: str) -> None:
        self.first = first

    @hookimpl
    def setup(self):
        yield sh("touch key")

    @hookimpl
    def clean_up(self, released):
        remove = "; rm -f key; echo $$ >pid.new; mv pid.new pid; while [ -e hold ]; do sleep 0.05; done; rm -f key"
        yield sh(f"# released: {released}\n" + self.first + remove)


class CheckedKeys(Keys):
    @hookimpl
    def check(self):
        yield sh("test -e key")


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("module", [Keys("true"), CheckedKeys("trap '' TERM")], ids=["ends", "ignores-sigterm"])
def test_a_clean_up_of_a_dead_supervisor_ends_before_the_next_set_up(world, module):
    world.plugins.add("keys", module)
    world.cloud.workers, world.cloud.borrowed = 1, True
    world.create("tpu: {release: never}\n" + CONFIG.replace("ls key", "touch hold"))
    world.until("failed")
    home = world.path / "cloud/1/0"
    world.until((home / "pid").exists)
    world.restart_supervisor()
    world.request("resume")

    def is_running() -> bool:
        world.clock.ahead += 0.5
        return world.state.attempt == 2

    world.until(is_running)
    assert not Path("/proc", (home / "pid").read_text().strip()).exists()
    (home / "hold").unlink(missing_ok=True)
    assert (home / "key").exists()


class TwoKeys:
    """A module that keeps a second key until the job gives the machines up."""

    @hookimpl
    def setup(self):
        yield sh("touch key shared-key")

    @hookimpl
    def clean_up(self, released):
        hold = "touch held; while [ -e hold ]; do sleep 0.05; done"
        yield sh("rm -f key shared-key" if released else f"rm -f key; {hold}")


def test_a_delete_during_a_clean_up_cleans_up_for_the_release_too(world):
    world.plugins.add("keys", TwoKeys())
    world.cloud.workers, world.cloud.borrowed = 1, True
    world.create(CONFIG.replace("ls key", "touch hold"))
    world.until("failed")
    home = world.path / "cloud/1/0"
    world.until((home / "held").exists)
    world.request("delete")
    directory = world.controller.record.directory
    while (delay := world.controller.advance()) is not None:
        time.sleep(min(delay, 0.05))
    assert not directory.exists()
    assert not (home / "shared-key").exists()
    (home / "hold").unlink()
