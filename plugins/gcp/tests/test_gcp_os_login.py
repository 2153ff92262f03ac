"""OS Login: the keys go into the profile of the credentials' account, and the login is under the profile's user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpux import Job, Waiting
from tpux.model.sections import JobSection
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location

KEY = "Ann.Lee:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJm5MzTDtKwrS6mXx5FH9pyDqgZyLxVw2Rdz0ew7DEPl tpux"


def _users(ready):
    return {worker.details.get("user") for worker in ready.allocation.workers}


@pytest.mark.parametrize("where", ["config", "project"])
def test_the_keys_are_imported_before_anything_is_created(drive, where):
    job = drive(keys=(KEY,), metadata={"enable-oslogin": "TRUE"} if where == "config" else {})
    if where == "project":
        job.cloud.change(project_metadata={"enable-oslogin": "TRUE"})
    assert _users(job.ready()) == {"tpux_example_com"}
    methods = [each.method for each in job.requests()]
    assert methods.index("oslogin.users.importSshPublicKey") < methods.index("nodes.create")
    assert _users(job.ready()) == {"tpux_example_com"}, "a later step says the same"
    job.release()


def test_a_node_of_somebody_else_that_uses_os_login(drive):
    api = Api(Place("emulated", endpoint=(job := drive(name="os-login-node", keys=(KEY,))).cloud.url))
    spec = {"accelerator_type": "v4-8", "runtime_version": "tpu-vm-base", "metadata": {"enable-oslogin": "true"}}
    api.create_node(Location("emulated", "us-central2-b"), "os-login-node", spec)
    assert _users(job.ready()) == {"tpux_example_com"}
    assert {each.query["updateMask"] for each in job.requests("nodes.patch")} == {"labels"}, "its ssh-keys are not used"


def test_metadata_override_the_projects_os_login(drive):
    job = drive(keys=(KEY,), metadata={"enable-oslogin": "FALSE"})
    job.cloud.change(project_metadata={"enable-oslogin": "TRUE"})
    assert _users(job.ready()) == {None}
    assert job.requests("oslogin") == []
    job.release()


def test_an_import_that_is_refused_denies_the_request_before_anything_is_created(drive):
    job = drive(keys=(KEY,), metadata={"enable-oslogin": "TRUE"})
    job.cloud.error(403, "oslogin.users.importSshPublicKey", message="OS Login API has not been used in project p")
    failure = job.denied().failure
    assert failure.kind == "auth"
    assert "profile of tpux@example.com: OS Login API has not been used" in failure.evidence
    assert "gcloud services enable oslogin.googleapis.com" in failure.hint
    assert "roles/compute.osAdminLogin" in failure.hint
    assert job.nodes() == []


def test_an_import_that_is_not_answered_is_repeated(drive):
    job = drive(keys=(KEY,), metadata={"enable-oslogin": "TRUE"})
    job.cloud.error(503, "oslogin.users.importSshPublicKey", message="unavailable", count=1)
    assert isinstance(job.step(), Waiting)
    assert _users(job.ready()) == {"tpux_example_com"}
    job.release()


def test_an_unknown_account_is_reported_by_preflight_and_denies_the_request(drive):
    job = drive(keys=(KEY,), metadata={"enable-oslogin": "TRUE"})
    job.resolved = {**job.resolved, "login_account": ""}
    failure = job.denied().failure
    assert failure.kind == "config"
    assert "not known to which account the credentials belong" in failure.evidence
    assert "gcloud auth login" in failure.hint


def test_preflight_says_into_which_profile_the_key_goes(drive, tmp_path):
    section = drive(metadata={"enable-oslogin": "TRUE"}).tpu
    job = Job("000001", "ann", "store", tmp_path, {"job": JobSection(name="x"), "tpu": section})
    job = replace(job, resolved={section.allocation_mode: tpu_vm.resolve(job=job)})
    assert "profile of tpux@example.com" in " ".join(finding.message for finding in tpu_vm.preflight(job=job))


def test_the_workers_name_their_instance_for_a_tunnel(drive):
    job = drive(accelerator="v4-16", keys=(KEY,))
    details = [worker.details for worker in job.ready().allocation.workers]
    assert len({each["instance"] for each in details}) == 2
    assert {(each["project"], each["zone"]) for each in details} == {("emulated", "us-central2-b")}
    job.release()
