"""The contracts of the plugin, on the emulator's Kubernetes API, with real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tpux_gke.contract_fixture import emulated_cluster
from tpux_gke.section import GkeTpuSection
from tpux_testing import (
    CommandLine,
    LocalFixture,
    allocator_contract,
    hooks_contract,
    section_contract,
    transport_contract,
)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFixture]:
    """Start a cluster for the tests of this module."""
    with emulated_cluster({}) as fixture:
        yield fixture


def test_hooks() -> None:
    """Check the hooks."""
    hooks_contract("gke")


def test_section() -> None:
    """Check the section."""
    section_contract("gke")


def test_transport(local: LocalFixture) -> None:
    """Check the transport on a pod."""
    transport_contract("gke", local.worker, local.config, unreachable=local.unreachable)


def test_allocator(local: LocalFixture) -> None:
    """Check the allocator, with slices of two hosts."""
    allocator_contract("gke", local.config, existing=local.existing)


REAL = {
    "allocation_mode": "gke", "namespace": "research", "queue": "research-queue", "priority": "urgent",
    "image": "europe-docker.pkg.dev/p/r/i:1", "service_account": "trainer", "storage": "/data/runs",
    "volumes": {"/data": {"persistentVolumeClaim": {"claimName": "data"}}},
    "pod": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "100Gi"}}}]}},
}  # fmt: skip


@pytest.mark.timeout(480)
def test_real_config(tpux_cli: CommandLine) -> None:
    """`tpux plugins check` takes the config of a job on a real cluster: its place and its queue are emulated."""
    place = {"cluster": "prod", "location": "europe-west4", "project": "p", "accelerator": "v6e-8"}
    (tpux_cli.work / "real.yaml").write_text(json.dumps({"tpu": {**REAL, **place}, "command": "python train.py"}))
    done = tpux_cli("plugins", "check", "gke", "--config", "real.yaml", "--json")
    outcomes = {one["contract"]: one["outcome"] for one in json.loads(done.stdout)}
    assert (outcomes["allocator_contract"], outcomes["transport_contract"]) == ("ok", "ok")


def test_real_config_of_a_large_slice() -> None:
    """It is not emulated with hundreds of processes, nor in the kubeconfig of the user."""
    place = {"context": "prod", "kubeconfig": "/nowhere/config", "accelerator": "v5p-2048", "topology": "8x8x16"}
    with emulated_cluster({"tpu": {**REAL, **place}}) as fixture:
        section = GkeTpuSection.model_validate(fixture.config["tpu"])
        assert (section.count_workers(), section.context, section.queue) == (2, None, "research-queue")
