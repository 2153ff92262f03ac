"""The API as a later version may answer: with fields, types and enum values that tpux does not know (a seed each)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.main import get_command

from tpux import Waiting
from tpux_emulator.cloud import answers
from tpux_gcp import lookup
from tpux_gcp.api import Api
from tpux_gcp.cli import app
from tpux_gcp.credentials import Place
from tpux_gcp.provision import STUCK_AFTER
from tpux_gcp.resource import Location

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.system) for seed in (1, 2, 3))]
CREATE = {"tpu-vm": "nodes.create", "queued-resources": "queuedResources.create"}
ZONES = ["us-east1-d", "us-east5-b"]
MODES = pytest.mark.parametrize("mode", CREATE)


@pytest.fixture(params=SEEDS)
def later(cloud, request):
    """The emulator, which answers as a later version of the API."""
    cloud.change(future=request.param)
    return cloud


@MODES
def test_machines_are_provisioned_inspected_and_released(later, drive, mode):
    job = drive(mode=mode, accelerator="v4-16", pricing="spot", keys=("ann:ssh-ed25519 A",))
    allocation = job.ready().allocation
    assert [worker.index for worker in allocation.workers] == [0, 1]
    assert job.inspect().state == "ready"
    assert job.ready().allocation == allocation
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])
    assert job.inspect().state == "gone"
    novel = [each for each in job.requests() if "novelty" in json.dumps(each.answer)]
    assert len(novel) > len(job.requests()) / 2


def test_a_multislice(later, drive):
    job = drive(mode="queued-resources", node_count=3)
    assert job.ready().allocation.slices == 3
    assert job.inspect().state == "ready"
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_preempted_tpu_is_replaced(later, drive, mode):
    job = drive(mode=mode, pricing="spot")
    job.ready()
    later.preempt(job.request.name)
    for _ in range(1000):
        if (status := job.inspect()).state == "preempted":
            break
        assert status.state in {"ready", "waiting", "unknown"}
        job.pause(Waiting("", 1.0))
    assert status.state == "preempted"
    job.release()
    assert job.ready().allocation.workers
    job.release()


@MODES
@pytest.mark.parametrize("fault", ["lose", "drop"])
def test_a_creation_without_an_answer(later, drive, mode, fault):
    job = drive(mode=mode)
    getattr(later, fault)(CREATE[mode], count=1)
    job.ready()
    assert len(job.nodes()) == 1
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_creation_that_fails_in_one_zone(later, drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    status = answers.status("no-capacity", zone="us-east1-d")
    later.fail_operation(CREATE[mode], code=status.code, message=status.message)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_a_refusal_with_unknown_details(later, drive):
    job = drive(accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    later.forbid("us-east1-d", form="policy")
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


@pytest.mark.parametrize("kind", ["node", "queued_resource"])
def test_a_state_that_is_unknown_is_waited_for_without_end(drive, monkeypatch, kind):
    """Nobody knows what it means: the TPU may be about to be ready, and may hold somebody's capacity."""
    job = drive(mode="queued-resources", accelerator="v6e-8", zone=ZONES)
    job.run(until="request sent")
    while not (kind == "queued_resource" or job.nodes()):
        pass
    ask = getattr(Api, kind)
    with monkeypatch.context() as patch:
        patch.setattr(Api, kind, lambda *args: (found := ask(*args)) and replace(found, state="NOVEL"))
        began = job.at
        while job.at - began < 4 * STUCK_AFTER:
            waiting = job.step()
            job.pause(waiting)
        assert "is NOVEL, which this version of tpux does not know: waiting" in waiting.why
        assert job.inspect().state == "waiting"
    assert job.requests("queuedResources.delete") == []
    assert job.ready().allocation.zone == ZONES[0]
    job.release()


def test_lists_say_how_many_items_cannot_be_read(later, drive, capsys, monkeypatch):
    job = drive()
    job.ready()
    api = Api(Place("emulated", endpoint=later.url))
    found = {node.name: node.state for node in api.nodes(Location("emulated", "-"))}  # other tests' nodes too
    assert found[job.request.name] == "READY"
    assert api.unreadable == 1
    assert lookup.find_orphans([api.place.to_json()]) != [], "no job of the store holds it"
    get_command(app).main(["list"], prog_name="tpux tpu", standalone_mode=False)
    printed = capsys.readouterr()
    assert job.request.name in printed.out
    assert " items of the TPU API's lists cannot be read, and are left out" in printed.err
    job.release()
