"""What a plugin keeps in its own directory: core deletes what no job uses, and nothing if that is not certain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpux import TpuxError, hookimpl, sh
from tpux.lifecycle.garbage import disk_usage, remove_unused
from tpux.store import Store

from .world import World


class Keeper:
    """A module whose jobs use the files that the test chooses."""

    def __init__(self, used: dict[str, object]) -> None:
        self.used = used

    @hookimpl
    def resolve(self, job):
        return {"name": job.name}

    @hookimpl
    def stored_files(self, resolved):
        answer = self.used[resolved["name"]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @hookimpl
    def check(self):
        yield sh("true")


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    directory = world.store.home / "keeper"
    for name in ("one", "two", "both", "none", "lock", "new"):
        (directory / "deep").mkdir(parents=True, exist_ok=True)
        (directory / "deep" / name).write_text("12345")
        if name != "new":
            os.utime(directory / "deep" / name, (1, 1))
    (directory / "deep/lock").rename(directory / "lock")
    world.used = {"one": [directory / "deep/one", directory / "deep/both"]}
    world.used["two"] = [directory / "deep/two", directory / "deep/both"]
    world.plugins.add("keeper", Keeper(world.used))
    for name in world.used:
        world.create(f"job: {{name: {name}}}\nsetup: {{modules: [keeper]}}\ncommand: 'true'\n")
    return world


def there(world) -> set[str]:
    return {path.name for path in (world.store.home / "keeper").rglob("*") if path.is_file()}


def test_what_no_job_uses_is_deleted_with_a_job_unless_it_is_new(world):
    world.request("delete")
    world.until(lambda: not world.store.record(world.job).directory.exists())
    assert there(world) == {"one", "both", "lock", "new"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["{home}/keeper/one", "{home}/store.json"], "expected files below {home}/keeper, got {home}/store.json"),
        (["{home}/keeper/../code/one"], "expected files below {home}/keeper, got {home}/code/one"),
        (["{home}/keeper"], "expected files below {home}/keeper, got {home}/keeper"),
        (["relative"], "expected files below {home}/keeper, got relative"),
        (TpuxError("it is damaged"), "it is damaged"),
        (ValueError("a bug"), "failed in stored_files: ValueError: a bug"),
        ("text", "expected a sequence of Path, got 'text'"),
    ],
)
def test_another_path_or_an_error_deletes_nothing(world, caplog, answer, message):
    home, before = str(world.store.home), there(world)
    world.used["one"] = [Path(one.format(home=home)) for one in answer] if isinstance(answer, list) else answer
    remove_unused(world.store, world.plugins)
    assert "what no job uses of plugin keeper is not removed" in caplog.text
    assert message.format(home=home) in caplog.text
    assert there(world) == before


def test_a_store_whose_path_has_dots(world):
    dotted = Store(world.store.home / "keeper/..")
    assert disk_usage(dotted, dotted.record(world.job), world.plugins) >= 10
    remove_unused(dotted, world.plugins)
    assert there(world) == {"one", "two", "both", "lock", "new"}


def test_one_plugin_that_fails_does_not_keep_the_files_of_others(world):
    other = world.store.home / "another/file"
    other.parent.mkdir()
    other.write_text("")
    os.utime(other, (1, 1))
    world.plugins.add("another", Keeper({}))
    world.used["one"] = ValueError("a bug")
    remove_unused(world.store, world.plugins)
    assert not other.exists()


def test_a_plugin_has_no_directory_of_core(world):
    world.plugins.add("jobs", Keeper({}))
    for path in (world.store.home / "jobs").rglob("*"):
        os.utime(path, (1, 1))
    before = sorted((world.store.home / "jobs").rglob("*"))
    remove_unused(world.store, world.plugins)
    assert sorted((world.store.home / "jobs").rglob("*")) == before


def test_nothing_is_deleted_while_the_plugin_holds_its_lock(world):
    import fcntl

    before = there(world)
    with (world.store.home / "keeper/lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        remove_unused(world.store, world.plugins)
        assert there(world) == before
    remove_unused(world.store, world.plugins)
    assert there(world) == before - {"none"}


def test_the_size_of_a_job_has_its_files(world):
    record = world.store.record(world.job)
    before = disk_usage(world.store, record, world.plugins)
    world.used["two"] = []
    assert disk_usage(world.store, record, world.plugins) == before - 10
