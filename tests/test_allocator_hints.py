"""What only the user can mend while a job goes on, such as a login that has expired, is shown, and reported once."""

from __future__ import annotations

import pytest

from tpux import MachineStatus, Released, TpuxError, Waiting, hookimpl
from tpux.api.event_lines import describe_event
from tpux.errors import HostUnreachableError
from tpux.model.events import Warned

from .world import Cloud, World

LOGIN = "gcloud auth login"


class Expiring(Cloud):
    """A cloud whose login expires while `expired` is set."""

    expired = False

    @hookimpl
    def provision(self, request):
        return Waiting("login expired", 0.05, hint=LOGIN) if self.expired else super().provision(request)

    @hookimpl
    def inspect(self):
        if self.expired:
            return MachineStatus("unknown", "login expired", poll_after=0.05, hint=LOGIN)
        return super().inspect()

    @hookimpl
    def release(self):
        if self.expired:
            return Waiting("not released yet: login expired", 0.05, hint=LOGIN)
        self.up = False
        return Released()


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.cloud = Expiring(tmp_path / "cloud", workers=1)
    world.plugins = type(world.plugins)()
    world.plugins.add("cloud", world.cloud)
    return world


def warnings(world):
    found = [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]
    return [(event.kind, event.workers, event.text, event.hint) for event in found]


def test_a_login_that_expires_while_machines_are_requested(world):
    world.cloud.expired = True
    world.create("command: 'true'\n")
    world.until(lambda: world.state.hint == LOGIN)
    world.steps()
    assert world.state.why == "login expired"
    world.restart_supervisor()
    world.steps()
    assert warnings(world) == [("machines", (), "login expired", LOGIN)], "once, also over a restart"
    world.cloud.expired = False
    world.until("succeeded")


def test_a_login_that_expires_while_the_program_runs(world):
    world.create("command: 'until [ -e ~/go ]; do sleep 0.05; done'\n")
    world.until(lambda: world.state.run.running)
    for times in (1, 2):  # a login that lasts for a day expires each day
        world.cloud.expired = True
        world.clock.ahead += 30
        world.until(lambda: world.state.hint == LOGIN)
        world.clock.ahead += 3600
        world.steps()
        assert world.state.why == "attempt 1: login expired"
        assert world.state.attempt_open
        assert len(warnings(world)) == times
        world.cloud.expired = False
        world.clock.ahead += 30
        world.until(lambda: not world.state.hint)
        assert world.state.why == "attempt 1"
    (world.cloud.root / "1" / "0" / "go").touch()
    world.until("succeeded")


def test_a_login_that_expires_before_the_release(world):
    world.create("command: 'true'\n")
    world.until("succeeded")
    world.cloud.expired = True
    world.until(lambda: world.state.hint == LOGIN)
    world.steps()
    assert world.state.why == "not released yet: login expired"
    assert len(warnings(world)) == 1
    assert world.cloud.up
    world.cloud.expired = False
    world.until(lambda: not world.cloud.up)


def test_the_event_is_one_line():
    event = Warned(kind="machines", workers=(), text="login expired", hint=LOGIN)
    assert describe_event(event) == f"warning: login expired; {LOGIN}"


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("refused"), TimeoutError("timed out"), HostUnreachableError("no route")], ids=str
)
def test_a_plugin_that_gets_no_answer_in_its_preflight_stops_no_job(world, capsys, error):
    def preflight():
        raise error

    world.cloud.preflight = hookimpl(preflight)
    world.plugins = type(world.plugins)()
    world.plugins.add("cloud", world.cloud)
    world.create("command: 'true'\n")
    assert f"warning: plugin cloud: not checked: {error}" in capsys.readouterr().out
    world.until("succeeded")


@pytest.mark.parametrize(
    "error", [PermissionError(13, "denied", "/x"), ValueError("?"), TpuxError("forbidden")], ids=str
)
def test_another_error_of_a_preflight_stops_the_job(world, error):
    def preflight():
        raise error

    world.cloud.preflight = hookimpl(preflight)
    world.plugins = type(world.plugins)()
    world.plugins.add("cloud", world.cloud)
    with pytest.raises(TpuxError):
        world.create("command: 'true'\n")
    assert world.store.ids() == []
