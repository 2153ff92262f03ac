"""Whose a TPU is: ours, another job's, nobody's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpux import Released
from tpux_gcp.api import Api
from tpux_gcp.views import Place

PLACE = Place("emulated", "us-central2-b")
SPEC = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}


@pytest.fixture
def by_hand(cloud):
    """Makes a node that no job asked for."""
    made = []

    def make(name: str, **spec: object) -> str:
        Api("emulated", cloud.url).create_node(PLACE, name, {**SPEC, **spec})
        made.append(name)
        return name

    yield make
    for name in made:
        Api("emulated", cloud.url).delete_node(PLACE, name)


def living_job(tmp_path: Path, job: str, user: str = "bob") -> None:
    """A job on disk that runs."""
    directory = tmp_path / "tpux" / "jobs" / user / job
    directory.mkdir(parents=True)
    created = {"type": "created", "at": 1.0, "id": job, "user": user, "name": "x"}
    (directory / "events.jsonl").write_text(json.dumps(created) + "\n")


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_that_nobody_made_for_a_job_is_borrowed(drive, by_hand, mode):
    name = by_hand(f"hand-{mode}", metadata={"ssh-keys": "eve:ssh-rsa E", "x": "y"})
    job = drive(mode=mode, name=name, keys=("ann:ssh-ed25519 A",))
    allocation = job.ready().allocation
    assert allocation.borrowed
    patch = job.asked("nodes.patch")[0]
    assert patch.query["updateMask"] == "metadata"
    assert patch.body["metadata"] == {"ssh-keys": "eve:ssh-rsa E\nann:ssh-ed25519 A", "x": "y"}
    assert job.inspect().condition == "ready"
    job.release()
    assert job.nodes() == [f"us-central2-b/{name}"]
    assert job.asked("nodes.create") == job.asked("nodes.delete") == []


def test_a_borrowed_tpu_is_deleted_where_the_config_says_always(drive, by_hand):
    job = drive(name=by_hand("hand-always"), release="always")
    assert job.ready().allocation.borrowed
    job.release()
    assert job.nodes() == []


def test_a_borrowed_tpu_has_one_borrower_at_a_time(drive, by_hand, tmp_path):
    name = by_hand("hand-two")
    first, second = drive(name=name, job="000901"), drive(name=name, job="000902")
    living_job(tmp_path, "000901")
    first.ready()
    failure = second.denied().failure
    assert (failure.kind, "job 000901" in failure.evidence) == ("config", True)
    second.release()
    assert first.nodes()
    first.release()
    second.memo = {}
    second.ready()
    second.release()


def test_a_claim_of_a_dead_job_is_void(drive, by_hand):
    name = by_hand("hand-dead")
    drive(name=name, job="000903").ready()  # it is nowhere on disk
    second = drive(name=name, job="000904")
    second.ready()
    second.release()


def test_a_living_job_s_tpu_is_refused_with_its_name(drive, tmp_path):
    first = drive(name="shared-name", job="000905")
    living_job(tmp_path, "000905")
    first.ready()
    second = drive(name="shared-name", job="000906")
    failure = second.denied().failure
    assert failure.kind == "config"
    assert "belongs to job 000905 of ann-lee" in failure.evidence
    assert "000905" in failure.hint
    assert isinstance(second.let_go(), Released)
    assert first.nodes()
    first.release()


def test_a_tpu_of_another_store_is_refused(drive, by_hand):
    labels = {"tpux-store": "other", "tpux-user": "eve", "tpux-job": "000001"}
    job = drive(name=by_hand("elsewhere", labels=labels))
    failure = job.denied().failure
    assert "another store (other)" in failure.evidence
    job.release()
    assert job.nodes()


def test_what_a_job_left_behind_is_borrowed(drive):
    left = drive(name="left-over", job="000907")
    left.ready()
    job = drive(name="left-over", job="000908")
    assert job.ready().allocation.borrowed
    job.release()
    assert job.nodes()
    left.release()


def test_what_a_dead_job_left_behind_preempted_does_not_block_its_name(drive):
    left = drive(name="left-lost", job="000909", pricing="spot")
    left.ready()
    left.cloud.preempt("left-lost")
    while left.inspect().condition == "ready":
        pass
    job = drive(name="left-lost", job="000910", pricing="spot")
    assert not job.ready().allocation.borrowed
    assert len(job.asked("nodes.create")) == 1
    job.release()
    assert job.nodes() == []


def test_ours_is_adopted_while_it_is_being_made_and_asked_for_again_when_it_is_lost(drive):
    job = drive(pricing="spot")
    job.ready()
    job.memo = {
        key: value for key, value in job.memo.items() if key in {"project", "zone", "accelerator", "request_id"}
    }
    job.ready()
    assert len(job.asked("nodes.create")) == 1
    job.cloud.preempt(job.request.name)
    job.cloud.wait_for(job.request.name, "PREEMPTED")
    job.ready()  # deleted, awaited, asked for again
    assert len(job.asked("nodes.create")) == 2
    job.release()


def test_a_borrowed_tpu_that_is_preempted_is_not_touched(drive, by_hand):
    name = by_hand("hand-spot", scheduling_config={"spot": True})
    job = drive(name=name)
    job.ready()
    job.cloud.preempt(name)
    while job.inspect().condition == "ready":
        pass
    job.release()
    failure = job.denied().failure
    assert "PREEMPTED" in failure.evidence
    assert "tpu.release: always" in failure.hint
    assert job.nodes()
    job.release()


def test_a_stopped_tpu_of_one_worker_is_started(drive, by_hand):
    name = by_hand("hand-off")
    job = drive(name=name)
    job.ready()
    api = Api("emulated", job.cloud.url)
    api.stop_node(PLACE, name)
    while (node := api.node(PLACE, name)) and node.state != "STOPPED":
        pass
    assert job.inspect().condition == "gone"
    job.release()
    job.ready()
    job.release()


def test_a_tpu_that_somebody_else_made_under_our_name_is_not_ours(drive, by_hand):
    job = drive()
    job.ready()
    api, name = Api("emulated", job.cloud.url), job.request.name
    api.delete_node(PLACE, name)
    while api.node(PLACE, name):
        pass
    assert job.inspect().condition == "gone"
    by_hand(name)
    assert job.inspect().condition == "gone"
    job.release()
    assert job.nodes()


def test_a_failed_patch_is_tried_again(drive, by_hand):
    job = drive(name=by_hand("hand-patch"), keys=("ann:ssh-ed25519 A",))
    job.cloud.fail_operation("nodes.patch")
    job.ready()
    job.release()
