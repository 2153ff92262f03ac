"""Existing TPUs: ours, another job's, a stale one, or one that tpux did not create."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from tpux import Finding, Job, Released, TpuxError, Waiting
from tpux.api import machines
from tpux.model.sections import JobSection
from tpux_emulator.cloud import answers
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.provision import MAX_REFUSALS
from tpux_gcp.resource import Location

LOCATION = Location("emulated", "us-central2-b")
SPEC = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}


@pytest.fixture
def by_hand(cloud):
    """Return a function that creates a node without a job."""
    made = []

    def make(name: str, **spec: object) -> str:
        Api(Place("emulated", endpoint=cloud.url)).create_node(LOCATION, name, {**SPEC, **spec})
        made.append(name)
        return name

    yield make
    for name in made:
        delete_node(cloud, name)


@pytest.fixture
def findings(tmp_path):
    """Return a function that gives the preflight findings for a driver's job, all or those about a key."""

    def look(driver, key: str = "") -> list[Finding]:
        sections = {"job": JobSection(name="x"), "tpu": driver.tpu}
        resolved = {driver.tpu.allocation_mode: driver.resolved}
        job = Job(driver.job, "ann", "store", tmp_path, sections, resolved=resolved)
        return [finding for finding in driver.allocator.preflight(job=job) if key in {"", finding.where}]

    return look


@pytest.fixture
def preflight(findings):
    """Return a function that gives the warnings and errors of preflight for a driver's job."""

    def look(driver) -> list[tuple[str, str, str, str]]:
        found = [finding for finding in findings(driver) if finding.level not in {"ok", "note"}]
        return [(f.level, f.message, f.where, f.hint) for f in found]

    return look


def delete_node(cloud, name: str) -> None:
    api = Api(Place("emulated", endpoint=cloud.url))
    if resource := api.tpu(LOCATION, name, queue=False):
        api.delete(LOCATION, resource)


def live_job(tmp_path: Path, job: str, user: str = "bob") -> None:
    """Write a live job to the store."""
    directory = tmp_path / "tpux" / "jobs" / user / job
    directory.mkdir(parents=True)
    created = {"type": "created", "at": 1.0, "id": job, "user": user, "name": "x"}
    (directory / "events.jsonl").write_text(json.dumps(created) + "\n")


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_not_created_by_tpux_is_borrowed(drive, by_hand, mode):
    name = by_hand(f"hand-{mode}", metadata={"ssh-keys": "eve:ssh-rsa E", "x": "y"})
    job = drive(mode=mode, name=name, keys=("ann:ssh-ed25519 A",))
    allocation = job.ready().allocation
    assert allocation.borrowed
    patch = job.requests("nodes.patch")[1]  # after that of the claim
    assert patch.query["updateMask"] == "metadata"
    assert patch.body["metadata"] == {"ssh-keys": "eve:ssh-rsa E\nann:ssh-ed25519 A", "x": "y"}
    assert job.inspect().state == "ready"
    job.release()
    assert job.nodes() == [f"us-central2-b/{name}"]
    assert job.requests("nodes.create") == job.requests("nodes.delete") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("refusing", "Not now."),
        ("restarting", answers.status("wrong-state", verb="update", state="RESTARTING").message),
    ],
)
def test_a_refusal_of_what_exists_is_no_mistake_in_the_config(drive, by_hand, name, message):
    """The TPU is read again: the refusal may be due to its state, whatever it says."""
    job = drive(name=by_hand(name), keys=("ann:ssh-ed25519 A",))
    refused = job.cloud.error(400, "nodes.patch", message=message)
    assert isinstance(job.run(until=message), Waiting)
    job.cloud.clear(refused)
    assert job.ready().allocation.borrowed
    job.release()


def test_a_refusal_that_remains_is_final(drive, by_hand):
    job = drive(name=by_hand("unwilling"), keys=("ann:ssh-ed25519 A",))
    job.cloud.error(400, "nodes.patch", message="metadata too large")
    failure = job.denied().failure
    assert (failure.kind, failure.evidence) == ("config", "metadata too large")
    asked = [each.method for each in job.requests() if each.method in {"nodes.get", "nodes.patch"}]
    assert asked.count("nodes.patch") == MAX_REFUSALS + 1
    tries = [before for before, method in itertools.pairwise(asked) if method == "nodes.patch"]
    assert set(tries) == {"nodes.get"}, "it is read again before each try"
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_of_another_type_is_refused(drive, by_hand, preflight, mode):
    job = drive(mode=mode, name=by_hand(f"small-{mode}"), accelerator="v4-16")
    said = f"TPU {job.tpu.name} in us-central2-b is a v4-8, and tpu.accelerator is v4-16"
    what_to_do = "set tpu.accelerator: v4-8 to use it, or choose another tpu.name"
    failure = job.denied().failure
    assert (failure.kind, failure.evidence, failure.hint) == ("config", said, what_to_do)
    job.release()
    assert job.nodes() == [f"us-central2-b/{job.tpu.name}"]
    assert job.requests("nodes.patch") == job.requests("nodes.delete") == []
    assert preflight(job) == [("error", said, "tpu.name", what_to_do)]


def test_a_tpu_with_another_number_of_slices_is_refused(drive, by_hand, preflight):
    name = by_hand("one-slice")
    job = drive(mode="queued-resources", name=name, node_count=2)
    job.cloud.wait_for(name, "READY")
    assert "one-slice in us-central2-b has 1 slice(s), and tpu.node_count is 2" in job.denied().failure.evidence
    assert preflight(job)[0][0] == "error"


def test_a_tpu_of_another_version_is_refused(drive, by_hand, preflight):
    job = drive(name=by_hand("old", runtime_version="tpu-ubuntu2204-base"), version="v2-alpha-tpuv4")
    said = "TPU old in us-central2-b has the version tpu-ubuntu2204-base, and tpu.version is v2-alpha-tpuv4"
    assert job.denied().failure.evidence == said
    assert said in [finding[1] for finding in preflight(job)]
    job.release()
    same = drive(name="old", version="tpu-ubuntu2204-base")
    assert same.ready().allocation.borrowed
    same.release()


def test_a_tpu_of_one_of_the_configs_types_is_borrowed_as_what_it_is(drive, by_hand, preflight):
    job = drive(name=by_hand("either"), accelerator=["v4-16", "v4-8"])
    assert preflight(job) == []
    allocation = job.ready().allocation
    assert (allocation.borrowed, allocation.accelerator, len(allocation.workers)) == (True, "v4-8", 1)
    job.release()


def test_release_always_deletes_a_borrowed_tpu(drive, by_hand):
    job = drive(name=by_hand("hand-always"), release="always")
    assert job.ready().allocation.borrowed
    job.release()
    assert job.nodes() == []


def test_release_always_leaves_the_tpu_that_another_job_has_created_under_the_name(drive, cloud, by_hand):
    name = by_hand("hand-again")
    job = drive(name=name, release="always")
    job.ready()
    delete_node(cloud, name)
    while job.nodes():
        time.sleep(0.05)
    by_hand(name, labels={"tpux-store": "other", "tpux-user": "eve", "tpux-job": "000001"})
    job.release()
    assert job.nodes() == [f"us-central2-b/{name}"]


def test_a_borrowed_tpu_is_leased_to_one_job(drive, by_hand, tmp_path):
    name = by_hand("hand-two")
    first, second = drive(name=name, job="000901"), drive(name=name, job="000902")
    live_job(tmp_path, "000901")
    first.ready()
    waiting = second.run(until="in use")
    assert "TPU hand-two in us-central2-b is in use by job 901; `tpux stop 901 --release` frees it" in waiting.why
    assert waiting.poll_after > 0
    first.release()
    assert second.ready().allocation.name == "hand-two"
    second.release()
    assert second.nodes()


def test_a_tpu_that_the_job_created_is_used_and_deleted_although_a_user_keeps_leases_from_others(drive, monkeypatch):
    def keep(_machine: str):
        raise TpuxError("mallory keeps from others what the store's users publish")

    monkeypatch.setattr(machines, "lease_of", keep)
    job = drive(name="own-kept", job="000916")
    job.ready()
    job.release()
    assert job.nodes() == []


def test_a_job_that_borrows_waits_while_a_user_keeps_leases_from_others(drive, by_hand, monkeypatch):
    def keep(*_arguments: object):
        raise TpuxError("mallory keeps from others what the store's users publish")

    job = drive(name=by_hand("hand-kept"), job="000917")
    with monkeypatch.context() as patch:
        patch.setattr(machines, "acquire_all", keep)
        job.run(until="mallory keeps from others")
    assert job.ready().allocation.borrowed
    job.release()


def lease(name: str) -> str:
    return f"projects/emulated/locations/us-central2-b/{name}"


def test_a_tpu_that_another_users_job_has_is_waited_for_and_who_can_free_it_is_said(drive, by_hand, tmp_path):
    name = by_hand("hand-theirs")
    theirs = {"tpux-store": machines.store_id(), "tpux-user": "eve", "tpux-job": "000921"}
    live_job(tmp_path, "000921", "eve")
    machines.acquire(lease(name), theirs)
    job = drive(name=name, job="000922")
    why = job.run(until="in use").why
    assert "TPU hand-theirs in us-central2-b is in use by job 921 of eve" in why
    assert "eve can type `tpux stop 921 --release`" in why


def test_a_tpu_that_another_user_holds_is_waited_for_and_until_when_is_said(drive, by_hand, monkeypatch):
    name = by_hand("hand-held")
    with monkeypatch.context() as patch:
        patch.setenv("TPUX_USER", "eve")
        machines.hold([lease(name)], until=4102444800.0)
    job = drive(name=name, job="000923")
    why = job.run(until="is held").why
    assert "TPU hand-held in us-central2-b is held by eve until 2100-01-01 00:00 UTC" in why
    assert "or eve types `tpux release hand-held`" in why


def test_a_job_waits_for_another_users_hold_of_the_tpu_that_it_created(drive, monkeypatch):
    """No claim says it: who holds a TPU writes none."""
    job = drive(name="own-held", job="000924")
    job.ready()
    again = drive(name="own-held", job="000924")
    with monkeypatch.context() as patch:
        patch.setenv("TPUX_USER", "eve")
        machines.hold([lease("own-held-000924")], until=4102444800.0)
        assert machines.lease_of(lease("own-held-000924"))["tpux-user"] == "eve"
        answer = again.run(until="is held by eve")
        assert isinstance(answer, Waiting), again.messages
        waiting = again.run(again.release_step, until="is held by eve")
        assert "is held by eve" in waiting.why, "it is not deleted under who holds it"
        machines.end_hold([lease("own-held-000924")])
    assert again.ready()
    again.release()


def test_a_job_that_waits_for_a_lease_releases_nothing(drive, by_hand, tmp_path):
    name = by_hand("hand-three")
    first, second = drive(name=name, job="000911"), drive(name=name, job="000912")
    live_job(tmp_path, "000911")
    first.ready()
    second.run(until="in use")
    second.release()
    third = drive(name=name, job="000913")
    third.run(until="in use by job 911")
    first.release()


def test_the_lease_of_an_ended_job_is_void(drive, by_hand):
    name = by_hand("hand-dead")
    drive(name=name, job="000903").ready()  # a job that is not in the store
    second = drive(name=name, job="000904")
    second.ready()
    second.release()


def test_a_live_jobs_tpu_is_rejected_with_its_id(drive, tmp_path):
    first = drive(name="shared-name", job="000905")
    live_job(tmp_path, "000905")
    name = first.ready().allocation.name
    second = drive(name=name, job="000906")
    failure = second.denied().failure
    assert failure.kind == "config"
    assert "belongs to job 000905 of ann-lee" in failure.evidence
    assert "000905" in failure.hint
    assert isinstance(second.release_step(), Released)
    assert first.nodes()
    first.release()


def test_a_tpu_of_another_store_is_rejected(drive, by_hand):
    labels = {"tpux-store": "other", "tpux-user": "eve", "tpux-job": "000001"}
    job = drive(name=by_hand("elsewhere", labels=labels))
    failure = job.denied().failure
    assert "another store (other)" in failure.evidence
    job.release()
    assert job.nodes()


def test_a_stale_tpu_is_borrowed(drive):
    left = drive(name="left-over", job="000907")
    job = drive(name=left.ready().allocation.name, job="000908")
    assert job.ready().allocation.borrowed
    job.release()
    assert job.nodes()
    left.release()


def test_a_stale_preempted_tpu_is_replaced(drive, by_hand, tmp_path):
    left = drive(name="left-lost", job="000909", pricing="spot")
    left.ready()
    left.cloud.preempt("left-lost")
    while left.inspect().state == "ready":
        pass
    job = drive(name="left-lost-000909", job="000910", pricing="spot")
    live_job(tmp_path, job.job)
    allocation = job.ready().allocation
    assert (allocation.name, allocation.borrowed) == ("left-lost-000909-000910", False)
    assert len(job.requests("nodes.create")) == 1
    other = drive(name=by_hand("left-lost-000909"), job="000915", pricing="spot")
    assert other.ready().allocation.borrowed
    for each in (job, other):
        each.release()
    assert job.nodes() == ["us-central2-b/left-lost-000909"]


def test_our_tpu_is_adopted_and_replaced_when_lost(drive):
    job = drive(pricing="spot")
    job.ready()
    job.saved_state = {
        key: value
        for key, value in job.saved_state.items()
        if key in {"project", "endpoint", "name", "slices", "zone", "accelerator", "request_id"}
    }
    job.ready()
    assert len(job.requests("nodes.create")) == 1
    job.cloud.preempt(job.request.name)
    job.cloud.wait_for(job.request.name, "PREEMPTED")
    job.ready()  # deleted and requested again
    assert len(job.requests("nodes.create")) == 2
    job.release()


def test_a_preempted_borrowed_tpu_is_not_deleted(drive, by_hand):
    name = by_hand("hand-spot", scheduling_config={"spot": True})
    job = drive(name=name)
    job.ready()
    job.cloud.preempt(name)
    while job.inspect().state == "ready":
        pass
    job.release()
    failure = job.denied().failure
    assert "PREEMPTED" in failure.evidence
    assert "tpu.release: always" in failure.hint
    assert job.nodes()
    job.release()


def test_preflight_says_whether_a_named_tpu_is_used_or_created(drive, by_hand, findings):
    used = drive(name=by_hand("there"), zone=["us-central2-a", "us-central2-b"])
    (finding,) = findings(used, "tpu.name")
    assert (finding.level, finding.message) == ("note", "uses the existing TPU there in us-central2-b")
    assert findings(used, "tpu.release_if_unattended") == [], "a borrowed one is never deleted"
    (finding,) = findings(drive(name="nowhere"), "tpu.name")
    assert finding.level == "note"
    assert finding.message == "creates nowhere-JOB-...: there is no TPU nowhere in us-central2-b"
    assert "tpu.existing: true" in finding.hint


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_that_must_exist_is_never_created(drive, by_hand, findings, mode):
    zones = ["us-central2-a", "us-central2-b"]
    job = drive(mode=mode, name="nowhere", existing=True, zone=zones)
    failure = job.denied().failure
    assert failure.kind == "config"
    assert failure.evidence.count("no TPU there is called nowhere, and tpu.existing is true") == 2
    job.release()
    assert job.requests("nodes.create") == job.requests("queuedResources.create") == []
    (finding,) = findings(job, "tpu.name")
    said = "there is no TPU nowhere in us-central2-b, and tpu.existing is true"
    assert (finding.level, finding.message) == ("error", said)
    there = drive(mode=mode, name=by_hand(f"here-{mode}"), existing=True, zone=zones)
    assert there.ready().allocation.borrowed
    there.release()
    with pytest.raises(ValidationError, match=r"tpu\.existing needs tpu\.name"):
        drive(existing=True)


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_config_with_a_name_runs_many_times(drive, mode):
    first, second = drive(mode=mode, name="mine", job="000921"), drive(mode=mode, name="mine", job="000922")
    second.labels["tpux-token"] = "3fa9"
    names = [job.ready().allocation.name for job in (first, second)]
    assert names == ["mine-000921", "mine-000922-3fa9"]
    for job in (first, second):
        job.release()
    assert first.nodes() == []


def test_nothing_is_created_while_the_api_does_not_say_whether_the_name_exists(drive):
    job = drive(name="unanswered")
    job.cloud.error(503, method="nodes.get")
    job.run(until="the TPU API answered 503: ")
    job.run(until="the TPU API answered 503: ")
    assert job.requests("nodes.create") == []
    job.cloud.clear()
    assert job.ready().allocation.name == f"unanswered-{job.job}"
    job.release()


def test_a_tpu_of_the_configs_name_is_adopted_in_the_zone_where_it_exists(drive, by_hand):
    job = drive(name=by_hand("elsewhere"), zone=["us-central2-a", "us-central2-b"])
    job.cloud.stockout("us-central2-a")
    allocation = job.ready().allocation
    assert (allocation.name, allocation.zone, allocation.borrowed) == ("elsewhere", "us-central2-b", True)
    job.release()


def test_an_adopted_tpu_that_vanishes_is_replaced_under_the_jobs_own_name(drive, by_hand, cloud):
    job = drive(name=by_hand("vanishing"))
    assert job.step().why.startswith("requesting")
    assert "borrowing" in job.step().why
    delete_node(cloud, "vanishing")
    cloud.wait_for("vanishing", "GONE")
    allocation = job.ready().allocation
    assert (allocation.name, allocation.borrowed) == (f"vanishing-{job.job}", False)
    job.release()
    assert job.nodes() == []


def test_a_tpu_that_a_job_no_longer_borrows_is_not_leased(drive, by_hand, cloud, tmp_path):
    job = drive(name=by_hand("given-up"))
    live_job(tmp_path, job.job)
    job.ready()
    delete_node(cloud, "given-up")
    cloud.wait_for("given-up", "GONE")
    assert job.ready().allocation.name == f"given-up-{job.job}"
    other = drive(name=by_hand("given-up"))
    assert other.ready().allocation.name == "given-up"
    for each in (job, other):
        each.release()


def test_a_borrowed_tpu_that_was_lost_and_deleted_is_not_leased(drive, by_hand, cloud, tmp_path):
    name = by_hand("lost-always", scheduling_config={"spot": True})
    job = drive(name=name, release="always", pricing="spot")
    live_job(tmp_path, job.job)
    job.ready()
    cloud.preempt(name)
    cloud.wait_for(name, "PREEMPTED")
    assert job.ready().allocation.name == f"{name}-{job.job}"
    other = drive(name=by_hand(name), pricing="spot")
    assert other.ready().allocation.name == name
    for each in (job, other):
        each.release()


def test_a_stopped_tpu_with_one_worker_is_started(drive, by_hand):
    name = by_hand("hand-off")
    job = drive(name=name)
    job.ready()
    api = Api(Place("emulated", endpoint=job.cloud.url))
    api.stop_node(LOCATION, name)
    while (node := api.node(LOCATION, name)) and node.state != "STOPPED":
        pass
    assert job.inspect().state == "gone"
    job.release()
    job.ready()
    job.release()


def test_a_tpu_recreated_by_somebody_else_is_not_ours(drive, by_hand):
    job = drive()
    job.ready()
    api, name = Api(Place("emulated", endpoint=job.cloud.url)), job.request.name
    delete_node(job.cloud, name)
    while api.node(LOCATION, name):
        pass
    assert job.inspect().state == "gone"
    by_hand(name)
    assert job.inspect().state == "gone"
    left = job.release().left
    assert left.startswith(f"TPU {name} in us-central2-b has no labels of an owner and is left")
    assert f"`tpux tpu delete {name} --zone us-central2-b --project emulated`" in left
    assert job.nodes()


def wipe_labels(cloud, name: str, left: dict[str, str] | None = None) -> dict[str, str]:
    """Replace the labels of a node by hand; return those that it had."""
    api = Api(Place("emulated", endpoint=cloud.url))
    before, left = dict(api.node(LOCATION, name).labels), left or {}
    api.update_node(LOCATION, name, "labels", left)
    while api.node(LOCATION, name).labels != left:
        time.sleep(0.01)
    return before


@pytest.mark.parametrize("named", [{}, {"name": "wiped"}])
def test_a_job_whose_own_tpu_has_lost_its_labels_labels_it_again(drive, cloud, named):
    """It is under a name that only this job creates, so it is not borrowed from anybody, and deleted in the end."""
    job = drive(**named)
    name = job.ready().allocation.name
    wipe_labels(cloud, name)
    assert job.inspect().state == "gone"
    assert job.release().left
    allocation = job.ready().allocation
    assert (allocation.name, allocation.borrowed, labels_of(job)) == (name, False, [job.job])
    assert len(job.requests("nodes.create")) == 1
    wipe_labels(cloud, name)
    cloud.preempt(name)
    cloud.wait_for(name, "PREEMPTED")
    assert job.denied().failure.evidence == f"node {name} is PREEMPTED, and has no labels of an owner"
    job.saved_state["borrowed"] = True  # as before
    assert f"{name} in us-central2-b has no labels" in job.release().left
    delete_node(cloud, name)


def test_a_tpu_that_has_lost_its_labels_is_left_to_another_store_that_claims_it(drive, cloud):
    job = drive()
    name = job.ready().allocation.name
    before = wipe_labels(cloud, name, {"tpux-claim-evesstore": "9999999999-1-000007-eve"})
    assert "is in use by job 7 of eve" in job.run(until="in use by").why
    assert len(job.requests("nodes.patch")) == 1, "the one by hand"
    wipe_labels(cloud, name, before)
    job.saved_state["borrowed"] = True  # by an earlier version
    assert not job.ready().allocation.borrowed
    assert not job.release().left
    assert job.nodes() == []


def test_a_failed_metadata_update_is_retried(drive, by_hand):
    job = drive(name=by_hand("hand-patch"), keys=("ann:ssh-ed25519 A",))
    job.cloud.fail_operation("nodes.patch")
    job.ready()
    job.release()


# --- machines that are taken over from another job ----------------------------------------------


def labels_of(job) -> list[str]:
    """Return which job the labels of each of a job's nodes name; a test that failed may have left others."""
    nodes = Api(Place("emulated", endpoint=job.cloud.url)).nodes(LOCATION)
    return [node.labels["tpux-job"] for node in nodes if node.name.startswith(job.request.name)]


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_that_is_taken_over_gets_the_labels_of_its_new_job(drive, mode, slices, tmp_path):
    """It is not requested again, and a third job can take it over from the second."""
    jobs = [drive(mode=mode, node_count=slices, job=f"00093{number}") for number in range(3)]
    allocation = jobs[0].ready().allocation
    for former, job in itertools.pairwise(jobs):
        job.take_over(former)
        assert job.inspect().state == "ready", "it holds the machines before their labels say so"
        assert job.ready().allocation == allocation
        assert labels_of(job) == [job.job] * slices
        assert former.inspect().state == "gone"
        live_job(tmp_path, job.job)
        assert isinstance(former.release_step(), Released), "nothing is left to it"
    assert len(jobs[0].requests("nodes.create") + jobs[0].requests("queuedResources.create")) == 1
    assert jobs[2].nodes()
    jobs[2].release()
    assert jobs[2].nodes() == jobs[2].queued() == []


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_tpu_that_is_taken_over_and_lost_is_deleted(drive, mode):
    """Whether its labels were changed or not: those of a queued resource without nodes never are."""
    for ready in (False, True):
        first, second = (drive(mode=mode, pricing="spot") for _ in range(2))
        first.ready()
        second.take_over(first)
        if ready:
            second.ready()
        second.cloud.preempt(second.name)
        while second.inspect().state == "ready":
            pass
        second.ready()
        assert labels_of(second) == [second.job]
        assert len(first.requests("nodes.create") + first.requests("queuedResources.create")) == 2
        second.release()
        assert second.nodes() == second.queued() == []


def test_the_release_of_a_tpu_whose_labels_were_not_changed(drive):
    first, second = drive(), drive()
    first.ready()
    second.take_over(first)
    second.release()
    assert first.nodes() == []


def test_a_lease_passes_to_the_job_that_takes_over(drive, by_hand, tmp_path):
    name = by_hand("hand-over")
    first, second, third = (drive(name=name, job=f"00094{number}") for number in range(3))
    for job in (first, second):
        live_job(tmp_path, job.job)
    first.ready()
    second.take_over(first)
    assert second.ready().allocation.borrowed
    first.release()
    third.run(until="is in use by job 941")
    second.release()
    assert third.ready().allocation.borrowed
    third.release()
    assert second.requests("nodes.delete") == []


def test_a_takeover_that_ends_before_the_lease_was_acquired_leaves_no_claim(drive, cloud, by_hand, tmp_path):
    name = by_hand("hand-passed")
    first, second, third = (drive(name=name, job=f"00095{number}") for number in range(3))
    for job in (first, second):
        live_job(tmp_path, job.job)
    first.ready()
    second.take_over(first)
    second.release()
    assert Api(Place("emulated", endpoint=cloud.url)).node(LOCATION, name).labels == {}
    assert third.ready().allocation.borrowed
    third.release()


def test_an_update_of_labels_that_fails_is_repeated(drive):
    first, second = drive(), drive()
    first.ready()
    second.take_over(first)
    second.cloud.fail_operation("nodes.patch")
    second.ready()
    assert labels_of(second) == [second.job]
    second.release()
