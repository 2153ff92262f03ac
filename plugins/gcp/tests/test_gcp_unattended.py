"""TPUs that nobody attends to delete themselves, by the token that the VMs' metadata server gives."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from tpux import Job
from tpux.model.sections import JobSection
from tpux_emulator.emulator import Emulator
from tpux_gcp import unattended
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.api import Api
from tpux_gcp.credentials import GOOGLE_ENDPOINT, Place
from tpux_gcp.resource import Location
from tpux_gcp.section import GcpTpuSection

AFTER = 2.0
ASK = "curl -sf -H Metadata-Flavor:Google http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
# The config's own startup script, in this test a program of tpux, which ends once the metadata say so.
PROGRAM = f"until {ASK}/attributes/end; do sleep 0.1; done\n{ASK}/guest-attributes/t/ended -X PUT -d yes\n"


@pytest.fixture(scope="session")
def emulator(tpu_emulators: Callable[..., Emulator]) -> Emulator:
    quick = dict.fromkeys(["node.CREATING", "node.DELETING", "node.patch", "queued-resource.DELETING"], 0.05)
    return tpu_emulators(delays=quick)


def attribute(job, key: str, worker: int = 0) -> str:
    """Return what a worker has published."""
    place = Place.from_json(job.resolved)
    location = Location(place.project, "us-central2-b")
    return Api(place).guest_attributes(location, job.saved_state["name"])[worker].get(("tpux", key), "")


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def deletions(job) -> list[object]:
    return [each for each in job.requests() if each.verb == "DELETE"]


@pytest.mark.parametrize(
    ("mode", "slices"), [("tpu-vm", 1), ("queued-resources", 1), pytest.param("tpu-vm", 2, marks=pytest.mark.system)]
)
def test_an_unattended_tpu_deletes_itself(drive, mode, slices):
    job = drive(mode=mode, accelerator="v4-16", node_count=slices, release_if_unattended=AFTER)
    job.ready()
    assert len(job.nodes()) == slices
    wait_until(lambda: not job.nodes() and not job.queued())
    [deletion] = deletions(job)
    assert deletion.account == "123456789012-compute@developer.gserviceaccount.com"
    assert deletion.method == ("nodes.delete" if (mode, slices) == ("tpu-vm", 1) else "queuedResources.delete")
    assert job.inspect().state == "gone"


def test_not_while_a_program_of_tpux_runs(drive, tmp_path):
    script = tmp_path / "boot.sh"
    script.write_text(f"#!/bin/bash\nexport TPUX_RUN_ID=x TPUX_RUN_HOME=/\nbash -c '{PROGRAM}'\n")
    job = drive(release_if_unattended=AFTER, startup_script=str(script))
    job.ready()
    wait_until(lambda: attribute(job, "attended") == "yes")
    time.sleep(2 * AFTER)
    assert not deletions(job)
    place = Place.from_json(job.resolved)
    Api(place).update_node(Location(place.project, "us-central2-b"), job.saved_state["name"], "metadata", {"end": "x"})
    wait_until(lambda: not job.nodes())


@pytest.mark.system
def test_not_while_somebody_is_logged_in_nor_soon_after(drive, cloud, tmp_path):
    """To another worker than the one that decides: that one was unattended all the time."""
    after = 3 * AFTER
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    job = drive(accelerator="v4-16", release_if_unattended=after, keys=(f"ann:{public}",))
    worker = job.ready().allocation.workers[1]
    options = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path / 'known'}", "-i", key]
    command = ["ssh", "-q", *options, "-p", str(cloud.ssh_port), f"ann@{worker.address}", "echo in; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as login:
        assert login.stdout.readline() == "in\n"
        wait_until(lambda: attribute(job, "attended", 1) == "yes")
        time.sleep(5 * AFTER)
        assert not deletions(job)
        ended = time.monotonic()
        login.stdin.close()
    wait_until(lambda: deletions(job))
    assert time.monotonic() - ended >= after * 3 / 4, "it counts from the last time it was seen attended"
    wait_until(lambda: not job.nodes())


@pytest.mark.parametrize(
    "labels", [{"tpux-store": "another", "tpux-job": "1"}, {"tpux-claim": "of-bob"}], ids=["others", "claimed"]
)
def test_not_what_has_other_labels_or_a_claim(drive, labels):
    job = drive(release_if_unattended=AFTER)
    job.ready()
    place = Place.from_json(job.resolved)
    updated = {**job.labels, "tpux-user": "ann-lee", **labels}
    Api(place).update_node(Location(place.project, "us-central2-b"), job.saved_state["name"], "labels", updated)
    wait_until(lambda: attribute(job, "unattended").startswith("not deleted: the labels of"))
    assert not deletions(job)
    assert job.nodes()


def test_not_a_tpu_that_the_job_borrows(drive, cloud):
    owner = drive(name="of-somebody", pricing="spot")
    owner.ready()
    created = owner.saved_state["name"]
    borrower = drive(name=created, existing=True, release_if_unattended=AFTER)
    place = Place.from_json(owner.resolved)
    api, location = Api(place), Location(place.project, "us-central2-b")
    api.update_node(location, created, "labels", {})
    wait_until(lambda: not api.node(location, created).labels)
    assert borrower.ready().allocation.borrowed
    assert "startup-script" not in api.node(location, created).metadata
    owner.release()


@pytest.mark.parametrize(
    ("tpu", "seconds"),
    [
        ({}, 24 * 3600),
        ({"pricing": "spot"}, 0),
        ({"pricing": "spot", "release_if_unattended": "2h"}, 7200),
        ({"release": "never"}, 0),
        ({"release_if_unattended": 0}, 0),
    ],
)
def test_when(tpu, seconds):
    assert unattended.release_after(GcpTpuSection.model_validate({"allocation_mode": "tpu-vm", **tpu})) == seconds


# --- preflight --------------------------------------------------------------------------------------


def findings(drive, **tpu):
    driver = drive(release_if_unattended="1h", **tpu)
    sections = {"job": JobSection(name="x"), "tpu": driver.tpu}
    job = Job("1", "ann", "store", driver.directory, sections, resolved={"tpu-vm": driver.resolved})
    return [each for each in tpu_vm.preflight(job=job) if each.where == unattended.KEY]


def test_preflight_says_what_cannot_be_checked(drive):
    [finding] = findings(drive, keep_on_stop="1h")
    assert (finding.level, "not checked" in finding.message) == ("note", True)


def test_preflight_warns_of_machines_that_are_kept_for_longer(drive):
    [warning, _] = findings(drive, keep_on_stop="2h")
    assert (warning.level, warning.message.split()[0]) == ("warning", "tpu.keep_on_stop")


STORAGE = "https://www.googleapis.com/auth/devstorage.read_only"


@pytest.mark.parametrize(
    ("tpu", "level"),
    [
        ({"scopes": [STORAGE]}, "warning"),
        ({"flags": [f"--scopes={STORAGE}"]}, "warning"),
        ({"scopes": [STORAGE, unattended.SCOPE]}, "note"),
        ({"flags": [f"--scopes={STORAGE},cloud-platform"]}, "note"),
    ],
    ids=str,
)
def test_preflight_warns_of_scopes_with_which_nothing_can_be_deleted(drive, tpu, level):
    [finding] = findings(drive, **tpu)
    assert (finding.level, "add https://" in finding.hint) == (level, level == "warning")


class _Answer:
    def __init__(self, message: object, status: int = 200) -> None:
        self.status_code, self.ok, self._message = status, status == 200, message

    def json(self) -> object:
        return self._message


@pytest.mark.parametrize(
    ("role", "status", "level"),
    [
        ("roles/tpu.admin", 200, "ok"),
        ("roles/editor", 200, "ok"),
        ("roles/tpu.viewer", 200, "warning"),
        ("roles/tpu.admin", 403, "note"),
    ],
)
def test_preflight_asks_whether_the_account_may(monkeypatch, role, status, level):
    def call(_place: Place, verb: str, url: str, **_: object) -> _Answer:
        if url.endswith(":getIamPolicy"):
            member = "serviceAccount:7-compute@developer.gserviceaccount.com"
            return _Answer({"bindings": [{"role": role, "members": [member]}]}, status)
        return _Answer({"projectNumber": "7"})

    monkeypatch.setattr(unattended, "call", call)
    tpu = GcpTpuSection.model_validate({"allocation_mode": "tpu-vm"})
    [finding] = unattended.check(Place(project="p", endpoint=GOOGLE_ENDPOINT), tpu)
    assert finding.level == level
    assert ("not checked" in finding.message) is (level != "ok")
