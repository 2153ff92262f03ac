"""Provision, inspect and release, with nodes and with queued resources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpux import MachineStatus, Released, TpuxError, Waiting
from tpux_gcp import api
from tpux_gcp.allocators import queued_resources

MODES = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
KEY = "ann:ssh-ed25519 AAAAC3Nza tpux"


@MODES
def test_machines_are_provisioned_and_released(drive, mode):
    job = drive(mode=mode, accelerator="v4-32", pricing="spot", keys=(KEY,))
    allocation = job.ready().allocation
    assert [worker.index for worker in allocation.workers] == [0, 1, 2, 3]
    assert all(w.address != w.internal_ip and w.address.startswith("127.") for w in allocation.workers)
    assert (allocation.transport, allocation.zone, allocation.slices) == ("ssh", "us-central2-b", 1)
    assert not allocation.borrowed
    assert job.inspect().state == "ready"
    assert job.ready().allocation == allocation  # repeatable
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])
    assert job.inspect().state == "gone"


@MODES
def test_the_created_tpu_matches_the_config(drive, mode, tmp_path):
    script = tmp_path / "boot.sh"
    script.write_text("echo hello\n")
    job = drive(
        mode=mode, pricing="spot", startup_script=str(script), tags=["t1"], labels={"team": "x"}, keys=(KEY,),
        metadata={"owner": "ann", "ssh-keys": "bob:ssh-rsa BBB", "n": 3, "on": True}, network="net1",
        subnetwork="sub1", service_account="sa@x", internal_ips=True, version="tpu-vm-base", project="p-7",
    )  # fmt: skip
    allocation = job.ready().allocation
    body = job.requests("nodes.create" if mode == "tpu-vm" else "queuedResources.create")[0]
    assert body.path.startswith("/v2/projects/p-7/locations/us-central2-b/")
    node = body.body if mode == "tpu-vm" else body.body["tpu"]["nodeSpec"][0]["node"]
    assert node["runtimeVersion"] == "tpu-vm-base"
    assert node["networkConfig"] == {"network": "net1", "subnetwork": "sub1"}
    assert (node["tags"], node["serviceAccount"]) == (["t1"], {"email": "sa@x"})
    assert node["metadata"] == {
        "owner": "ann", "n": "3", "on": "true", "startup-script": "echo hello\n",
        "ssh-keys": f"bob:ssh-rsa BBB\n{KEY}", "enable-guest-attributes": "TRUE",
    }  # fmt: skip
    assert node["labels"] == {
        "team": "x", "tpux-store": job.labels["tpux-store"], "tpux-user": "ann-lee", "tpux-job": job.job,
    }  # fmt: skip
    if mode == "tpu-vm":
        assert node["schedulingConfig"] == {"spot": True}
    else:
        assert body.body["spot"] == {}
        assert body.query["requestId"]
    assert all(worker.address == worker.internal_ip for worker in allocation.workers)
    job.release()


@pytest.mark.parametrize(
    ("accelerator", "zone", "version", "workers"),
    [
        ("v2-32", "us-central1-f", "tpu-ubuntu2204-base", 4),
        ("v3-8", "us-central1-a", "tpu-ubuntu2204-base", 1),
        ("v5p-16", "us-east5-a", "v2-alpha-tpuv5", 2),
        ("v5litepod-16", "us-west4-a", "v2-alpha-tpuv5-lite", 4),
        ("v6e-8", "us-east5-b", "v2-alpha-tpuv6e", 1),
    ],
)
def test_runtime_version_and_worker_count_per_generation(drive, accelerator, zone, version, workers):
    job = drive(accelerator=accelerator, zone=zone)
    assert len(job.ready().allocation.workers) == workers
    assert job.requests("nodes.create")[0].body["runtimeVersion"] == version
    job.release()


@MODES
def test_a_multislice_is_one_queued_resource(drive, mode):
    job = drive(mode=mode, accelerator="v4-16", node_count=3, name=f"multi-{mode}")
    allocation = job.ready().allocation
    assert [(w.index, w.slice) for w in allocation.workers] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert allocation.slices == 3
    assert len({w.internal_ip for w in allocation.workers}) == 6
    name = f"multi-{mode}-{job.job}"
    assert job.nodes() == [f"us-central2-b/{name}-{n}" for n in range(3)]
    job.cloud.preempt(f"{name}-1")
    _until(job, "preempted")
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@pytest.mark.parametrize(("pricing", "tier"), [("preemptible", "spot"), ("ondemand", None)])
def test_pricing_of_a_queued_resource(drive, pricing, tier):
    job = drive(mode="queued-resources", pricing=pricing, valid_until="2h")
    job.ready()
    body = job.requests("queuedResources.create")[0].body
    assert ("spot" in body) == (tier == "spot")
    assert body["queueingPolicy"] == {"validUntilDuration": "7200s"}
    job.release()


@MODES
@pytest.mark.parametrize(
    ("accelerator", "zone", "topology", "kind"),
    [
        ("v4-32", "us-central2-b", "2x2x4", "V4"),
        ("v5litepod-16", "us-west4-a", "4x4", "V5LITE_POD"),
    ],
)
def test_a_topology_is_sent_with_the_generation(drive, mode, accelerator, zone, topology, kind):
    job = drive(mode=mode, accelerator=accelerator, zone=zone, topology=topology)
    assert len(job.ready().allocation.workers) == 4
    body = job.requests("nodes.create" if mode == "tpu-vm" else "queuedResources.create")[0].body
    node = body if mode == "tpu-vm" else body["tpu"]["nodeSpec"][0]["node"]
    assert node["acceleratorConfig"] == {"type": kind, "topology": topology}
    assert "acceleratorType" not in node
    job.release()


@pytest.mark.parametrize(
    ("reservation", "sent"),
    [
        ("r1", "projects/emulated/locations/us-central2-b/reservations/r1"),
        ("-", "projects/emulated/locations/us-central2-b/reservations/-"),
        ("projects/p/locations/us-central2-b/reservations/r1", "projects/p/locations/us-central2-b/reservations/r1"),
        ("projects/owner/reservations/r1", "projects/owner/reservations/r1"),
    ],
)
def test_the_forms_of_a_reservation(drive, reservation, sent):
    job = drive(mode="queued-resources", reservation=reservation)
    job.cloud.change(reservations=["r1"])
    job.ready()
    assert job.requests("queuedResources.create")[0].body["reservationName"] == sent
    job.release()


def test_only_a_queued_resource_selects_a_reservation(drive):
    queued = drive(mode="queued-resources", reservation="res-1")
    queued.ready()
    body = queued.requests("queuedResources.create")[0].body
    assert body["reservationName"].endswith("/locations/us-central2-b/reservations/res-1")
    assert body["guaranteed"] == {}
    node = drive(reservation="-")
    node.ready()
    assert node.requests("nodes.create")[-1].body["schedulingConfig"] == {"reserved": True}
    queued.release()
    node.release()


@MODES
@pytest.mark.parametrize("steps", range(5))
def test_release_after_any_number_of_steps(drive, mode, steps):
    job = drive(mode=mode)
    for _ in range(steps):
        if not isinstance(answer := job.step(), Waiting):
            break
        job.pause(answer)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])
    assert isinstance(job.release_step(), Released)  # repeatable


@MODES
def test_a_preempted_tpu_is_reported_released_and_replaced(drive, mode):
    job = drive(mode=mode, pricing="spot")
    job.ready()
    job.cloud.preempt(job.request.name)
    machines = _until(job, "preempted")
    assert "PREEMPTED" in machines.evidence or "SUSPEND" in machines.evidence
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])
    job.ready()
    job.release()


def test_terminated_is_maintenance_or_the_end_of_a_preemptible_node(drive):
    for pricing, condition in (("ondemand", "maintenance"), ("preemptible", "preempted")):
        job = drive(pricing=pricing)
        job.ready()
        job.cloud.terminate(job.request.name)
        _until(job, condition)
        job.release()


def test_a_preemption_while_provisioning_is_retried(drive):
    job = drive(mode="queued-resources", pricing="spot")
    job.cloud.change(delays={"node.CREATING": 3600})
    job.run(until="PROVISIONING")
    job.cloud.preempt(job.request.name)
    job.cloud.change(delays={"node.CREATING": 0.05})
    allocation = job.ready().allocation
    assert len(allocation.workers) == 1
    assert len(job.requests("queuedResources.create")) == 2
    job.release()


@MODES
def test_an_api_error_is_unknown_and_deletes_nothing(drive, mode):
    job = drive(mode=mode)
    job.ready()
    for status in (500, 503, 403, 429):
        rule = job.cloud.error(status)
        assert job.inspect().state == "unknown"
        answer = job.release_step()
        assert isinstance(answer, Waiting)
        assert "not released yet" in answer.why
        job.cloud.clear(rule)
        api._throttled_until.clear()
    assert job.nodes()
    assert job.inspect().state == "ready"
    job.release()


def test_an_unreachable_slice_is_not_gone(drive, monkeypatch):
    job = drive(mode="queued-resources", node_count=2)
    job.ready()
    partial = {"unreachable": ["projects/emulated/locations/us-central2-b"]}
    with monkeypatch.context() as away:
        real = api.invoke
        away.setattr(api, "invoke", lambda *a, **o: partial if a[2].endswith("/nodes") else real(*a, **o))
        assert job.inspect().state == "unknown"
        assert "could not reach" in job.inspect().evidence
    assert job.inspect().state == "ready"
    job.release()


def test_a_tpu_in_a_silent_zone_is_unknown(drive, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")
    here, there = drive(), drive(zone="us-east1-d", accelerator="v6e-8")
    for job in (here, there):
        job.ready()

    def find(name: str) -> object:
        request = replace(here.request, name=name, saved_state={})
        return queued_resources.find_machines(request=request)

    cut = here.cloud.unreachable("us-east1-d")
    for name in (there.request.name, "n0"):
        with pytest.raises(TpuxError, match=f"unknown whether there is a TPU {name}: us-east1-d does not answer"):
            find(name)
    assert isinstance(find(here.request.name), Waiting), "that in the default zone is meant"
    here.cloud.clear(cut)
    assert isinstance(find(there.request.name), Waiting)
    assert find("n0") is None
    for job in (here, there):
        job.release()


def _until(job, condition) -> MachineStatus:
    import time

    deadline = time.monotonic() + 60
    while (machines := job.inspect()).state != condition:
        assert time.monotonic() < deadline, machines
        assert machines.state in {"ready", "waiting", "preempted"}, machines
        time.sleep(0.02)
    return machines


@MODES
def test_polls_are_frequent_right_after_a_deletion(drive, mode):
    job = drive(mode=mode)
    job.ready()
    job.at += 3600
    deletion = job.release_step()
    assert isinstance(deletion, Waiting)
    assert deletion.poll_after <= 2
    job.release()


LINKED = pytest.mark.parametrize("linked", [True, False])


@LINKED
def test_release_deletes_the_nodes_that_outlive_their_queued_resource(drive, linked):
    job = drive(mode="queued-resources", accelerator="v4-16", node_count=2)
    job.ready()
    job.cloud.forget(job.request.name, linked=linked)
    assert job.inspect().state == "gone"
    assert "nodes remain" in job.inspect().evidence
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_single_node_that_outlives_its_queued_resource_is_deleted(drive):
    job = drive(mode="queued-resources")
    job.ready()
    job.cloud.forget(job.request.name)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@LINKED
def test_nodes_without_their_queued_resource_are_deleted_before_the_next_request(drive, linked):
    job = drive(mode="queued-resources", accelerator="v4-16", node_count=2)
    job.cloud.change(delays={"node.CREATING": 3600})
    job.run(until="PROVISIONING")
    job.cloud.forget(job.request.name, linked=linked)
    job.cloud.change(delays={"node.CREATING": 0.05})
    assert job.ready().allocation.slices == 2
    assert len(job.requests("queuedResources.create")) == 2
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])
