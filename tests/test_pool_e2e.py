"""Jobs on TPUs that people share: a pool of emulated TPUs with real workers, through `tpux run --tpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_gcp_e2e import TPUX, cloud, tpu_emulator
from tests.test_gcp_takeover import tpux, until
from tpux_emulator.emulator import Emulator
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location

__all__ = ["cloud", "tpu_emulator"]
LOCATION = Location("emulated", "us-central2-b")
DELETIONS = {"nodes.delete", "queuedResources.delete"}


def make(cloud: Emulator, *names: str) -> None:
    """Make TPUs by hand, with a label of their owner."""
    api = Api(Place("emulated", endpoint=cloud.url))
    for name in names:
        spec = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base", "labels": {"team": name}}
        api.create_node(LOCATION, name, spec)
    for name in names:
        cloud.wait_for(name, "READY")


def labels(cloud: Emulator, name: str) -> dict[str, str] | None:
    tpu = Api(Place("emulated", endpoint=cloud.url)).tpu(LOCATION, name, queue=False)
    return None if tpu is None else dict(tpu.labels)


@pytest.fixture
def pool(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The emulator, for commands as for configs."""
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", cloud.url)
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")
    return cloud


@pytest.mark.process
@pytest.mark.system
def test_a_job_is_preempted_takes_another_tpu_and_leaves_both_as_it_found_them(pool: Emulator, tmp_path: Path) -> None:
    make(pool, "one", "two")
    tpux("tpu", "register", "one", "--alias", "p1")
    tpux("tpu", "register", "two")
    config = tmp_path / "train.yaml"
    config.write_text(
        "tpu: {allocation_mode: pool, accelerator: v4-8}\n"
        f"ssh: {{port: {pool.ssh_port}}}\nwatch: {{verdict_grace: 2s}}\n"
        "command:\n  cmd: |\n    echo attempt $TPUX_ATTEMPT on $(hostname)\n"
        "    while [ $TPUX_ATTEMPT = 1 ]; do sleep 0.1; done\n"
    )
    run = subprocess.Popen([TPUX, "run", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    lines = list[str]()
    for line in run.stdout:
        lines.append(line)
        sys.stdout.write(line)  # shown by pytest if the test fails
        if "attempt 1 on" in line:
            (used,) = (tpu for tpu in json.loads(tpux("find", "--json")) if tpu["job"])
            assert (used["name"], used["alias"], used["user"]) == ("one", "p1", "tester")
            pool.preempt("one")
    assert run.wait(100) == 0, "".join(lines)
    hosts = [line.split(" on ")[1].strip() for line in lines if "] attempt" in line or line.startswith("attempt")]
    assert len(set(hosts)) == 2, "each attempt was on a TPU of its own"
    until(lambda: all(tpu["job"] is None for tpu in json.loads(tpux("find", "--json"))))
    until(lambda: labels(pool, "two") == {"team": "two"})
    left = labels(pool, "one")
    assert left is None or left["team"] == "one"
    assert [request for request in pool.requests if request.method in DELETIONS] == []


@pytest.mark.system
@pytest.mark.process
def test_one_tpu_by_its_alias(pool: Emulator, tmp_path: Path) -> None:
    make(pool, "one", "two")
    tpux("tpu", "register", "one")
    tpux("tpu", "register", "two", "--alias", "p2")
    config = tmp_path / "train.yaml"
    config.write_text(
        "tpu: {allocation_mode: tpu-vm, accelerator: v4-8, zone: us-central2-b}\n"
        f"ssh: {{port: {pool.ssh_port}}}\ncommand: {{cmd: 'echo $STEPS on $(hostname)', env: {{STEPS: 1}}}}\n"
    )
    shown = tpux("run", config, "command.env.STEPS=7", "--tpu", "p2")
    assert "7 on t1v-" in shown
    assert "machines ready: two" in shown
    until(lambda: labels(pool, "two") == {"team": "two"})
    refused = tpux("create", config, "--tpu", "p3")
    assert "created job 2" in refused
    until(lambda: "no TPU of the pool is p3" in json.loads(tpux("show", "2", "--json"))["why"])
    tpux("delete", "2", "-y")


@pytest.mark.process
@pytest.mark.system
def test_a_tpu_that_a_job_keeps_after_its_end_is_given_to_one_that_waits_if_the_job_shares_it(
    pool: Emulator, tmp_path: Path
) -> None:
    make(pool, "one")
    tpux("tpu", "register", "one")
    config = tmp_path / "train.yaml"
    config.write_text(
        "tpu: {allocation_mode: pool, accelerator: v4-8, keep_on_failure: 5h}\njob: {rule: pass}\n"
        f"ssh: {{port: {pool.ssh_port}}}\ncommand: {{cmd: 'exit 1'}}\n"
    )

    def ends(job: str) -> bool:
        shown = json.loads(tpux("show", job, "--json"))
        return shown["state"] == "failed" and shown["held_until"] is not None

    tpux("create", config)
    until(lambda: ends("1"))
    tpux("create", config, "job.share=true")
    until(lambda: "one is in use by job 1 of tester" in tpux("show", "2"))
    tpux("stop", "1", "--release")
    until(lambda: ends("2"))
    tpux("create", config)
    until(lambda: ends("3"))
    assert json.loads(tpux("show", "2", "--json"))["held_until"] is None
    assert "releasing the machines for job 3 of tester (job.share)" in tpux("logs", "2", "--module", "tpu")
    assert [request for request in pool.requests if request.method in DELETIONS] == []
