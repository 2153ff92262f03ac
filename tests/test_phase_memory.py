"""Which memory of a job survives which change of its state, and that only a turn writes its events."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world import World
from tpux import Failure, TpuxError, hookimpl, sh
from tpux.clock import Deadlines
from tpux.lifecycle import advance
from tpux.lifecycle.end import Ended
from tpux.lifecycle.turn import Next
from tpux.model.events import StateChanged, Waiting, WorkerUpdated

LIFECYCLE = Path(advance.__file__).parent
CONDITION = "a condition"


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    world = World(tmp_path, monkeypatch)
    world.create("command: {cmd: 'exec sleep 1000', grace_period: 0}")
    world.until(lambda: world.state.run.running)
    return world


class Memory:
    """All that a supervisor knows of a job and that is not on the disk."""

    def __init__(self, world: World) -> None:
        controller = self._controller = world.controller
        world.until(lambda: not controller.workers.threads.busy())  # else a change of state gives these calls up
        self._turn = controller.begin()
        self._phase = controller.phase
        errors, workers = controller.errors, controller.workers
        errors.plugin_errors["a plugin", "a hook"] = errors.inspect_errors = errors.short_polls = 1
        errors.failing = Failure("unknown", evidence="for a test")
        workers.observed.observe(CONDITION, 1.0)
        workers.host(self._turn.machines.workers[0])
        self._turn.termination.begin([], 0.0)
        self._deadlines: Deadlines = self._turn.deadlines
        self._left = self._deadlines.left(world.clock.now() + 100, 100)
        world.clock.set_forward += 50  # a deadline that is kept does not move

    def kept(self, at: float) -> set[str]:
        """Return what is still there.

        Args:
            at: the wall time of the deadline.
        """
        controller, errors, workers = self._controller, self._controller.errors, self._controller.workers
        termination = self._turn.termination
        there = {
            "phase": controller.phase is self._phase and self._phase is not None,
            "plugin errors": bool(errors.plugin_errors),
            "errors of inspect": errors.inspect_errors > 0,
            "short polls": errors.short_polls > 0,
            "failing": errors.failing is not None,
            "termination": termination.begun,
            "since when it terminates": termination.since is not None,
            "observed time": CONDITION in workers.observed.seconds(),
            "connections": bool(workers._hosts),
            "deadlines": self._deadlines.left(at, 100) > 60,
        }
        return {name for name, is_there in there.items() if is_there}


def test_a_change_to_another_state(world):
    at = world.clock.now() + 100
    memory = Memory(world)
    turn = world.turn
    world.controller._commit(turn, Next(StateChanged(to="failed", why="for a test")))
    assert memory.kept(at) == {"observed time", "connections"}


def test_a_change_to_stopping(world):
    at = world.clock.now() + 100
    memory = Memory(world)
    world.controller._commit(world.turn, Next(StateChanged(to="stopping", why="for a test")))
    expected = {"observed time", "connections", "termination", "since when it terminates"}
    assert memory.kept(at) == expected, "a termination that has begun continues"


def test_a_step_that_raises(world, monkeypatch):
    memory = Memory(world)
    world.controller.errors.failing = None  # its termination would be the next step

    def step(turn):
        raise OSError("for a test")

    monkeypatch.setattr(world.controller.phase, "step", step)
    with pytest.raises(OSError, match="for a test"):
        world.controller.advance()
    kept = memory.kept(0.0) - {"deadlines"}
    assert kept == {
        "phase",
        "plugin errors",
        "errors of inspect",
        "short polls",
        "since when it terminates",
        "observed time",
    }


@pytest.mark.parametrize("follows", [False, True])
def test_a_new_request(world, follows):
    """A new request starts from nothing; the second part of `tpux restart` keeps the connections."""
    options = {"keep_for": 600.0} if follows else {}
    world.request("stop", **options)
    world.until("stopped")
    memory = Memory(world)
    world.controller.errors.failing = None
    world.request("resume")
    world.until(lambda: world.state.state == "pending")
    kept = memory.kept(0.0) - {"deadlines"}
    assert kept == ({"connections"} if follows else set())


def test_a_failing_allocator_is_asked_again_soon_after_a_new_request(world):
    world.cloud.state = "error"
    while world.controller.errors.inspect_errors < 4:
        world.clock.ahead += 60
        world.controller.advance()
    world.request("stop")
    world.until("stopped")
    world.request("resume")
    world.cloud.state = "ready"
    world.until(lambda: world.state.run.running and world.state.attempt == 2)
    world.cloud.state = "error"
    asked = world.count("inspect")
    world.until(lambda: world.count("inspect") > asked)
    assert world.controller.phase._contact.inspection.status.poll_after < 4, "the first back-off, and not the fifth"


def test_only_a_turn_writes_events():
    writers = {path.name for path in LIFECYCLE.glob("*.py") if re.search(r"\brecord\.write\(", path.read_text())}
    assert writers == {"turn.py"}
    steps = {path.name for path in LIFECYCLE.glob("*.py") if re.search(r"\bTurn\(\n", path.read_text())}
    assert steps == {"advance.py"}, "only a controller makes one"


@pytest.mark.system
def test_a_turn_has_the_machines_while_an_event_is_written(world):
    """Tasks on workers read them in threads of their own."""
    turn, missing, ended = world.turn, list[Exception](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                turn.machines.workers  # noqa: B018
            except TpuxError as error:
                missing.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        turn.write(Waiting(why=f"for a test: {number}"))
    ended.set()
    for thread in threads:
        thread.join()
    assert missing == []


def test_a_task_that_outlasts_a_step_sees_the_present(world):
    first = world.turn
    world.turn.write(WorkerUpdated(worker=replace(first.machines.workers[0], address="10.0.0.9")))
    assert first.machines.workers[0].address == "10.0.0.9"


def test_a_config_that_is_read_again_counts_at_once(world):
    turn = world.turn
    before = turn.opened
    turn.reload()
    assert turn.opened is not before


def test_a_clean_up_that_was_begun_again_does_not_delay_a_restart(world):
    phase = Ended()
    phase.delays_restart = True
    phase.restart()
    assert not phase.delays_restart


def test_a_clean_up_waits_for_a_lost_worker_as_long_as_the_config_says(tmp_path, monkeypatch):
    class Keys:
        @hookimpl
        def check(self):
            yield sh("true")

        @hookimpl
        def clean_up(self):
            yield sh("true")

    world = World(tmp_path, monkeypatch)
    world.plugins.add("keys", Keys())
    world.cloud.borrowed = True
    world.create("watch: {lost_after: 7s}\nsetup: {modules: [keys]}\ncommand: {cmd: 'true'}\n")
    world.until("succeeded")
    world.steps(1)
    assert world.controller.workers.patience.lost_after == 7


def test_a_transport_that_fails_is_waited_for_but_not_while_programs_are_ended(world):
    world.steps(1)
    assert world.controller.workers.patience.waits_for_transport
    world.request("stop")
    world.steps(2)
    assert not world.controller.workers.patience.waits_for_transport
