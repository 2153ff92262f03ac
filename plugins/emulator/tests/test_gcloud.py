"""Tests of the emulator with the real gcloud."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from emulator_support import missing

from tpux_emulator.emulator import Emulator

CREATE = ("--accelerator-type=v4-8", "--version=tpu-ubuntu2204-base")


class Gcloud:
    """Runs `gcloud compute tpus ...` against an emulator, with its own home directory."""

    def __init__(self, cloud: Emulator, home: Path) -> None:
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        config = {
            "HOME": str(home),
            "CLOUDSDK_CONFIG": str(home / "config"),
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        }
        self.environment = {**keep, **cloud.environment(), **config}

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["gcloud", "compute", "tpus", *arguments], env=self.environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == code, done.stderr
        return done

    def json(self, *arguments: str):
        return json.loads(self(*arguments, "--format=json").stdout)


@pytest.fixture(scope="session")
def gcloud_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcloud"):
        missing("no gcloud on this machine", installable=False)
    home = tmp_path_factory.mktemp("gcloud")
    (home / ".ssh").mkdir(mode=0o700)
    # Without a key, gcloud generates an RSA key of 3072 bits, which takes 1 to 10 s.
    key = home / ".ssh" / "google_compute_engine"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", key], check=True)
    return home


@pytest.fixture
def gcloud(api_cloud: Emulator, gcloud_home: Path) -> Gcloud:
    return Gcloud(api_cloud, gcloud_home)


@pytest.mark.system
def test_a_node_from_create_to_delete(gcloud: Gcloud) -> None:
    gcloud("tpu-vm", "create", "g1", *CREATE, "--spot", "--labels=a=b", "--metadata=k=v", "--tags=t1,t2")
    node = gcloud.json("tpu-vm", "describe", "g1")
    assert node["state"] == "READY"
    assert (node["labels"], node["metadata"], node["tags"]) == ({"a": "b"}, {"k": "v"}, ["t1", "t2"])
    assert node["schedulingConfig"] == {"spot": True}
    assert len(node["networkEndpoints"]) == 1
    assert "g1" in [each["name"].rpartition("/")[2] for each in gcloud.json("tpu-vm", "list")]
    gcloud("tpu-vm", "update", "g1", "--update-labels=x=y")
    assert gcloud.json("tpu-vm", "describe", "g1")["labels"] == {"a": "b", "x": "y"}
    gcloud("tpu-vm", "stop", "g1")
    assert gcloud.json("tpu-vm", "describe", "g1")["state"] == "STOPPED"
    gcloud("tpu-vm", "start", "g1")
    assert gcloud.json("tpu-vm", "describe", "g1")["state"] == "READY"
    assert "already exists" in gcloud("tpu-vm", "create", "g1", *CREATE, code=1).stderr
    gcloud("tpu-vm", "delete", "g1", "--quiet")
    assert "NOT_FOUND" in gcloud("tpu-vm", "describe", "g1", code=1).stderr


def test_an_accelerator_that_the_zone_does_not_have(gcloud: Gcloud) -> None:
    wrong = gcloud("tpu-vm", "create", "g2", "--accelerator-type=v6e-8", "--version=x", code=1).stderr
    assert 'zonal accelerator configurations for "us-central2-b"' in wrong


def test_a_zone_without_tpus(gcloud: Gcloud) -> None:
    assert "PERMISSION_DENIED" in gcloud("tpu-vm", "list", "--zone=us-north9-x", code=1).stderr


@pytest.mark.system
def test_types_and_versions(gcloud: Gcloud) -> None:
    types = gcloud.json("tpu-vm", "accelerator-types", "list")
    assert {each["type"] for each in types} >= {"v4-8", "v4-16", "v4-4096"}
    assert (
        gcloud.json("tpu-vm", "accelerator-types", "describe", "v4-16")["acceleratorConfigs"][0]["topology"] == "2x2x2"
    )
    versions = gcloud.json("tpu-vm", "versions", "list")
    assert "tpu-ubuntu2204-base" in [each["version"] for each in versions]


@pytest.mark.system
def test_a_queued_resource_of_one_node(gcloud: Gcloud, api_cloud: Emulator) -> None:
    create = ("--accelerator-type=v4-8", "--runtime-version=tpu-ubuntu2204-base")
    gcloud("queued-resources", "create", "gq1", "--node-id=gqn1", *create, "--spot", "--valid-until-duration=2h")
    api_cloud.wait_for_queued("gq1", "ACTIVE")
    shown = gcloud.json("queued-resources", "describe", "gq1")
    assert shown["state"] == {"state": "ACTIVE", "activeData": {}}
    assert gcloud.json("tpu-vm", "describe", "gqn1")["queuedResource"] == shown["name"]
    assert "gq1" in [each["name"].rpartition("/")[2] for each in gcloud.json("queued-resources", "list")]
    assert "set force" in gcloud("queued-resources", "delete", "gq1", "--quiet", code=1).stderr
    api_cloud.preempt("gqn1")
    api_cloud.wait_for_queued("gq1", "SUSPENDED")
    gcloud("queued-resources", "reset", "gq1")
    api_cloud.wait_for_queued("gq1", "ACTIVE")
    gcloud("queued-resources", "delete", "gq1", "--quiet", "--force")
    assert "NOT_FOUND" in gcloud("queued-resources", "describe", "gq1", code=1).stderr
    assert "NOT_FOUND" in gcloud("tpu-vm", "describe", "gqn1", code=1).stderr


@pytest.mark.system
def test_a_queued_resource_of_several_nodes(gcloud: Gcloud, api_cloud: Emulator) -> None:
    create = ("--accelerator-type=v4-16", "--runtime-version=tpu-ubuntu2204-base", "--async")
    gcloud("queued-resources", "create", "gq2", "--node-count=2", "--node-prefix=gms", *create)
    api_cloud.wait_for_queued("gq2", "ACTIVE")
    nodes = [each for each in gcloud.json("tpu-vm", "list") if "/gms-" in each["name"]]
    assert sorted(each["name"].rpartition("/")[2] for each in nodes) == ["gms-0", "gms-1"]
    assert all(each["multisliceNode"] and len(each["networkEndpoints"]) == 2 for each in nodes)
    gcloud("queued-resources", "delete", "gq2", "--quiet", "--force")


def test_a_failed_creation_is_reported(gcloud: Gcloud, api_cloud: Emulator) -> None:
    api_cloud.rule("stockout", name="g3", count=1)
    output = gcloud("tpu-vm", "create", "g3", *CREATE, code=1).stderr
    assert "There is no more capacity in the zone" in output


@pytest.mark.system
def test_ssh_and_scp_on_real_workers(ssh_cloud: Emulator, gcloud_home: Path, tmp_path: Path) -> None:
    if ssh_cloud.ssh_port != 22:
        pytest.skip("gcloud's scp needs port 22, which this user cannot bind")
    gcloud = Gcloud(ssh_cloud, gcloud_home)
    gcloud("tpu-vm", "create", "gs1", "--accelerator-type=v4-16", "--version=tpu-ubuntu2204-base")
    names = gcloud("tpu-vm", "ssh", "ann@gs1", "--worker=all", "--command", "hostname").stdout.split()
    assert len(set(names)) == 2
    assert all(name.startswith("t1v-n-") for name in names)
    gcloud("tpu-vm", "ssh", "ann@gs1", "--worker=all", "--command", "exit 3", code=3)
    (tmp_path / "file").write_text("through scp")
    gcloud("tpu-vm", "scp", str(tmp_path / "file"), "ann@gs1:/tmp/file", "--worker=all")
    assert gcloud("tpu-vm", "ssh", "ann@gs1", "--worker=1", "--command", "cat /tmp/file").stdout == "through scp"
    gcloud("tpu-vm", "delete", "gs1", "--quiet")
