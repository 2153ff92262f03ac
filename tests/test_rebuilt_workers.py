"""A worker that was rebuilt: its allocator publishes a new host key, which is stored and not asked for again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpux import HostIdentityError, MachineStatus, ProvisionRequest, Worker, hookimpl
from tpux.plugin.manager import Plugins

from .world import Cloud, World

CONFIG = "command: {cmd: 'while :; do sleep 0.2; echo $((n += 1)); done', grace_period: 0.3s}\n"


class Rebuilding(Cloud):
    """A cloud that publishes the keys of its workers."""

    keys: dict[int, str]
    allocated: tuple[Worker, ...]
    asked = 0

    @hookimpl
    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        if not request.describe_workers:
            return super().inspect()
        self.asked += 1
        workers = [
            replace(worker, details={**worker.details, "key": self.keys[worker.index]}) for worker in self.allocated
        ]
        return MachineStatus("ready", workers=workers)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.cloud = Rebuilding(tmp_path / "cloud")
    world.cloud.keys = {0: "", 1: ""}
    world.plugins = Plugins()
    world.plugins.add("cloud", world.cloud)
    plain = world.plugins.call_one

    def call_one(_, name, hook, **arguments):
        if hook.__name__ == "connect":
            worker = arguments["worker"]
            if worker.details.get("key", "") != world.cloud.keys[worker.index]:
                raise HostIdentityError("another key", where=f"worker {worker.index}")
        return plain(name, hook, **arguments)

    monkeypatch.setattr(Plugins, "call_one", call_one)
    world.create(CONFIG)
    world.until(lambda: world.output(0) and world.output(1))
    world.cloud.allocated = world.turn.machines.workers
    return world


def test_the_new_key_is_stored_once(world):
    world.cloud.keys[1] = "new"
    world.controller.workers.close_hosts()
    world.until(lambda: world.state.machines.workers[1].details.get("key") == "new")
    assert "key" not in world.state.machines.workers[0].details
    events = (world.controller.record.directory / "events.jsonl").read_text()
    assert events.count('"worker-updated"') == 1
    asked = world.cloud.asked
    world.restart_supervisor()
    before = len(world.output(1))
    world.until(lambda: len(world.output(1)) > before)
    assert world.cloud.asked == asked, "the stored key is used"
    assert world.state.attempt == 1


def test_a_key_that_is_not_published_is_not_stored(world):
    world.cloud.keys[1] = "new"
    world.cloud.allocated = world.cloud.allocated[:1]
    world.controller.workers.close_hosts()
    world.until(lambda: 1 in world.controller.workers.unreachable)
    world.steps(3)
    assert "worker-updated" not in (world.controller.record.directory / "events.jsonl").read_text()
