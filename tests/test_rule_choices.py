"""A rule's plugin is asked about every failure, and may choose other keys of `tpu` for the next request of machines."""

from __future__ import annotations

import pytest

from tpux import Action, Failure, MachineStatus, ProvisionRequest, Section, TpuSection, hookimpl
from tpux.model.failures import FAILURE_KINDS
from tpux.plugin.guard import PluginError

from .world import Cloud, World


class ZoneSection(TpuSection):
    """The section of a cloud with zones."""

    transport = "local"
    zone: str | list[str] = "a"
    """The zone."""

    def first_zone(self) -> str:
        return self.zone if isinstance(self.zone, str) else self.zone[0]


class Zones(Cloud):
    """A cloud that remembers which section each call got."""

    @hookimpl
    def tpu_section(self):
        return ZoneSection

    @hookimpl
    def provision(self, request: ProvisionRequest):
        self.asked.append(("provision", request.tpu.zone))
        return super().provision(request)

    @hookimpl
    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        self.asked.append(("inspect", request.tpu.zone))
        return super().inspect()

    @hookimpl
    def release(self, request: ProvisionRequest):
        self.asked.append(("release", request.tpu.zone))
        return super().release()

    def zones(self, call: str) -> list[str]:
        return [zone for name, zone in self.asked if name == call]


class ElsewhereSection(Section):
    """Where to go."""

    zone: str
    """The other zone."""


class Rule:
    """Choose the other zone once the program has failed twice."""

    def __init__(self) -> None:
        self.seen: list[tuple[Failure, dict[str, int]]] = []
        self.tpu: object = None

    @hookimpl
    def config_section(self):
        return ElsewhereSection

    @hookimpl
    def on_preempt(self, config, failure, restarts):
        self.seen.append((failure, dict(restarts)))
        if self.tpu is not None:
            return Action("resume", reapply=True, tpu=self.tpu)
        moves = restarts["program"] == 2
        return Action("resume", reapply=True, tpu={"zone": config.zone} if moves else {})


CONFIG = "job: {rule: elsewhere, max_restarts: {program: 4}}\nelsewhere: {zone: b}\ncommand: 'exit 1'\n"


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.cloud = Zones(tmp_path / "cloud")
    world.cloud.asked = []
    world.plugins.add("cloud", world.cloud)
    world.rule = Rule()
    world.plugins.add("elsewhere", world.rule)
    return world


def test_a_rule_chooses_another_zone_for_the_next_request_only(world):
    world.create(CONFIG)
    world.until(lambda: world.state.restarts.get("program") == 3)
    assert "on new machines with zone=b" in world.state.why
    assert world.turn.job.tpu.zone == "a", "the machines that it still holds are those of the former request"
    world.restart_supervisor()
    world.until(lambda: world.state.state == "provisioning")
    assert world.state.why == "requesting machines in b"
    world.restart_supervisor()
    world.until(lambda: world.state.attempt == 4)
    assert world.turn.job.tpu.zone == "b"
    world.until("failed")
    assert world.cloud.zones("provision") == ["a", "a", "a", "b", "a"]
    assert world.cloud.zones("release") == ["a", "a", "a", "b"]
    assert [seen["program"] for _, seen in world.rule.seen] == [0, 1, 2, 3, 4]
    assert world.rule.seen[0][1]["preempted"] == 0


def test_a_resume_by_the_user_has_the_zone_of_the_config(world):
    world.create(CONFIG)
    world.until(lambda: world.state.restarts.get("program") == 3)
    world.until(lambda: world.state.attempt == 4)
    world.request("stop", release=True)
    world.until("stopped")
    world.until(lambda: not world.state.requested)
    world.request("resume")
    world.until(lambda: world.state.attempt == 5)
    assert world.cloud.zones("provision")[3:5] == ["b", "a"]


@pytest.mark.parametrize(
    ("tpu", "problem"),
    [
        ({"zone": 3}, "tpu.zone.str: Input should be a valid string"),
        ({"zonee": "b"}, "tpu.zonee: Extra inputs are not permitted"),
        ({"allocation_mode": "local"}, "tpu.allocation_mode: it cannot change"),
    ],
)
def test_keys_that_are_not_valid_are_an_error_of_the_plugin(world, tpu, problem):
    world.rule.tpu = tpu
    world.create(CONFIG)
    with pytest.raises(PluginError, match="plugin elsewhere gave a wrong answer from on_preempt: " + problem):
        world.until("failed")
    assert world.state.action.tpu == {}


@pytest.mark.parametrize("kind", sorted(FAILURE_KINDS))
def test_the_rule_is_asked_about_every_kind_of_failure(world, kind):
    class Detector:
        @hookimpl
        def classify_failure(self, attempt):
            return [Failure(kind, 0, "it failed")]

    world.plugins.add("detector", Detector())
    world.create(CONFIG.replace("program: 4", f"{kind}: 0"))
    world.until("failed")
    assert world.rule.seen[-1][0].kind == kind
