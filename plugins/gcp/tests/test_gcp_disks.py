"""Data disks and the other fields of a node that a config may set."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tpux import Denied, Job
from tpux.model.sections import JobSection
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.disks import DataDisk
from tpux_gcp.section import GcpTpuSection

ZONE = "projects/emulated/zones/us-central2-b/disks"
MODES = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])


@pytest.fixture
def findings(drive, tmp_path):
    """Return a function that gives what preflight says about the data disks of a `tpu` section."""

    def look(**tpu: object) -> list[tuple[str, str, str]]:
        section = drive(**tpu).tpu
        job = Job("000001", "ann", "store", tmp_path, {"job": JobSection(name="x"), "tpu": section})
        job = replace(job, resolved={section.allocation_mode: tpu_vm.resolve(job=job)})
        return [(f.level, f.message, f.hint) for f in tpu_vm.preflight(job=job) if f.where == "tpu.data_disks"]

    return look


def sent(job, mode):
    """Return the last node that was sent."""
    body = job.requests("nodes.create" if mode == "tpu-vm" else "queuedResources.create")[-1].body
    return body if mode == "tpu-vm" else body["tpu"]["nodeSpec"][0]["node"]


@MODES
def test_disks_are_attached_again_after_a_preemption(drive, mode):
    job = drive(mode=mode, pricing="spot", data_disks=["data", {"source": f"{ZONE}/more", "mode": "read-only"}])
    job.ready()
    disks = [
        {"sourceDisk": f"{ZONE}/data", "mode": "READ_WRITE"},
        {"sourceDisk": f"{ZONE}/more", "mode": "READ_ONLY"},
    ]
    assert sent(job, mode)["dataDisks"] == disks
    [node] = job.nodes()
    job.cloud.preempt(node.partition("/")[2])
    while job.inspect().state != "preempted":
        time.sleep(0.05)
    job.release()
    job.ready()
    assert sent(job, mode)["dataDisks"] == disks
    job.release()


@pytest.mark.parametrize("tpu", [{"accelerator": "v4-16"}, {"node_count": 2}])
def test_several_workers_only_read(drive, tpu):
    job = drive(mode="queued-resources", data_disks=["data"], **tpu)
    job.ready()
    assert sent(job, "queued-resources")["dataDisks"] == [{"sourceDisk": f"{ZONE}/data", "mode": "READ_ONLY"}]
    job.release()


@pytest.mark.parametrize(
    ("tpu", "message", "hint"),
    [
        (
            {"accelerator": "v4-16", "data_disks": [DataDisk(source="d", mode="read-write")]},
            "v4-16 has several",
            "only",
        ),
        (
            {"node_count": 2, "data_disks": [DataDisk(source="d", mode="read-write")]},
            "2 slices has several",
            "read-only",
        ),
        (
            {"data_disks": ["projects/p/zones/us-east1-d/disks/d"]},
            "is not in us-central2-b",
            "set tpu.zone: us-east1-d",
        ),
        ({"data_disks": ["projects/p/regions/us-east1/disks/d"]}, "is not in us-central2-b", "zones of its region"),
        (
            {"zone": ["us-central2-b", "us-east5-b"], "accelerator": ["v4-8", "v6e-8"], "data_disks": [f"{ZONE}/d"]},
            "is not in us-east5-b",
            "a disk of that name in each zone",
        ),
    ],
)
def test_disks_that_cannot_be_attached(drive, findings, tpu, message, hint):
    job = drive(**tpu)
    answer = job.step()
    assert isinstance(answer, Denied)
    assert message in answer.failure.evidence
    assert hint in answer.failure.hint
    assert not job.requests("nodes.create")
    errors = [found for found in findings(**tpu) if found[0] == "error"]
    assert errors
    assert message in errors[0][1]


def test_preflight_asks_for_each_disk(drive, findings, cloud):
    assert findings(data_disks=["data"]) == [("ok", f"the disk {ZONE}/data is attached read-write", "")]
    cloud.change(disks={f"{ZONE}/here": "pd-balanced", "projects/emulated/zones/us-east5-b/disks/here": "pd-ssd"})
    [(level, message, hint)] = findings(data_disks=["gone"])
    assert (level, message) == ("error", f"there is no disk {ZONE}/gone")
    assert "gcloud compute disks list" in hint
    [(level, message, hint)] = findings(accelerator="v6e-8", zone="us-east5-b", data_disks=["here"])
    assert (level, "is a pd-ssd, and v6e takes Hyperdisk only" in message) == ("error", True)
    cloud.rule("error", status=403, method="compute.disks.get", count=1)
    [(level, message, hint)] = findings(data_disks=["here"])
    assert (level, "is not checked: HTTP status 403" in message) == ("warning", True)
    other = drive(data_disks=["here"])
    other.ready()
    [(level, message, hint)] = findings(data_disks=["here"])
    assert (level, "is attached to " in message) == ("warning", True)
    other.release()


def test_the_emulator_refuses_what_google_refuses(drive, cloud):
    """Past the plugin's own checks, as other clients send it."""
    cloud.change(disks={f"{ZONE}/here": "pd-balanced"})
    first = drive(data_disks=["here"])
    first.ready()
    second = drive(data_disks=["here"])
    second.run(until="already being used")
    first.release()
    second.ready()
    second.release()


@MODES
def test_the_simple_fields_of_a_node(drive, mode):
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    job = drive(mode=mode, scopes=scopes, secure_boot=True, description="Ann's run")
    job.ready()
    node = sent(job, mode)
    assert node["serviceAccount"] == {"scope": scopes}
    assert node["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    assert node["description"] == "Ann's run"
    job.release()


@pytest.mark.parametrize(
    "source", ["", "Big", "zones/z/disks/d", "projects/p/disks/d", "a b", "projects/p/zones/z/disks/"]
)
def test_a_malformed_disk(source):
    for make in (lambda: DataDisk(source=source), lambda: GcpTpuSection(data_disks=[source])):
        with pytest.raises(ValueError, match="is no disk"):
            make()


def test_a_disk_by_its_url():
    assert DataDisk(source=f"https://www.googleapis.com/compute/v1/{ZONE}/d").source == f"{ZONE}/d"
