"""Flex-start and Autocheckpoint, which the TPU API has in v2alpha1 only."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tpux import Denied, Job
from tpux.model.sections import CommandSection, JobSection
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.credentials import Place, call
from tpux_gcp.section import GcpTpuSection, apply_flags

FLEX = {"flex_start": True, "max_run_duration": 3600.0}


def test_flex_start_is_requested_again_at_the_end_of_its_run(drive, cloud):
    job = drive(mode="queued-resources", node_count=2, flex_start=True, max_run_duration=3)
    job.ready()
    [request] = job.requests("queuedResources.create")
    assert request.path.startswith("/v2alpha1/")
    assert (request.body["provisioningModel"], request.body["runDuration"]) == (
        "FLEX_START",
        {"maxRunDuration": "3s"},
    )
    [spec] = request.body["tpu"]["nodeSpec"]
    assert spec["multiNodeParams"]["nodeCount"] == 2
    while (status := job.inspect()).state == "ready":
        time.sleep(0.1)
    assert status.state == "preempted"
    job.release()
    job.ready()
    assert len(job.requests("queuedResources.create")) == 2
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_autocheckpoint(drive, mode):
    job = drive(mode=mode, autocheckpoint=True)
    job.ready()
    [request] = job.requests("nodes.create" if mode == "tpu-vm" else "queuedResources.create")
    assert request.path.startswith("/v2alpha1/")
    node = request.body if mode == "tpu-vm" else request.body["tpu"]["nodeSpec"][0]["node"]
    assert node["autocheckpointEnabled"] is True
    job.release()
    plain = drive(mode=mode)
    plain.ready()
    assert all(each.path.startswith("/v2/") for each in plain.requests())
    plain.release()


@pytest.mark.parametrize(
    ("mode", "tpu", "message"),
    [
        ("queued-resources", {"flex_start": True}, "needs tpu.max_run_duration"),
        ("queued-resources", {**FLEX, "max_run_duration": 8 * 86400}, "needs tpu.max_run_duration"),
        ("queued-resources", {**FLEX, "pricing": "spot"}, "neither spot nor reserved"),
        ("queued-resources", {**FLEX, "reservation": "r"}, "neither spot nor reserved"),
        ("queued-resources", {"max_run_duration": 60}, "of Flex-start only"),
        ("tpu-vm", FLEX, "needs a queued resource"),
    ],
)
def test_what_flex_start_is_not(drive, mode, tpu, message):
    job = drive(mode=mode, **tpu)
    answer = job.step()
    assert isinstance(answer, Denied)
    assert message in answer.failure.evidence
    assert not job.requests()


@pytest.mark.parametrize(
    ("version", "path", "body", "message"),
    [
        ("v2", "nodes?nodeId=x", {"autocheckpointEnabled": True}, "Unknown name"),
        ("v2", "queuedResources?queuedResourceId=x", {"provisioningModel": "FLEX_START"}, "Unknown name"),
        ("v2alpha1", "queuedResources?queuedResourceId=x", {"provisioningModel": "FLEX_START"}, "at most 7 days"),
        ("v2alpha1", "queuedResources?queuedResourceId=x", {"runDuration": {"maxRunDuration": "9s"}}, "FLEX_START"),
        ("v2alpha1", "queuedResources?queuedResourceId=x", {"provisioningModel": "CHEAP"}, "provisioning"),
    ],
)
def test_the_emulator_knows_the_fields_of_each_version(cloud, version, path, body, message):
    place = Place("emulated", "us-central2-b", cloud.url, endpoint_allowed=True)
    url = f"{cloud.url}/{version}/projects/emulated/locations/us-central2-b/{path}"
    answer = call(place, "POST", url, json=body)
    assert answer.status_code == 400
    assert message in answer.text


def test_the_flags_of_previews():
    section = apply_flags(GcpTpuSection(flags=["--provisioning-model=flex-start --max-run-duration=7d"]))
    assert (section.flex_start, section.max_run_duration) == (True, 7 * 86400)
    assert apply_flags(GcpTpuSection(flags=["--autocheckpoint-enabled"])).autocheckpoint


@pytest.mark.parametrize("required", [False, True])
def test_preflight_warns_of_a_program_that_may_seem_to_have_finished(drive, tmp_path, required):
    section = drive(autocheckpoint=True).tpu
    command = CommandSection(cmd="true", require_finished=required, finished_by=["wandb"] if required else [])
    job = Job("000001", "a", "s", tmp_path, {"job": JobSection(name="x"), "tpu": section, "command": command})
    job = replace(job, resolved={section.allocation_mode: tpu_vm.resolve(job=job)})
    found = [each for each in tpu_vm.preflight(job=job) if each.where == "tpu.autocheckpoint"]
    assert [each.level for each in found] == ([] if required else ["warning"])
