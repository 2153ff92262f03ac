"""The transport and single calls of the allocator, on a real cluster."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_support import wait_for

from tpux import Denied, Finding, HostUnreachableError, Ready, TpuxError, Waiting, Worker
from tpux_slurm import inspect, preflight, provision, release, resolve
from tpux_slurm.contract_fixture import Cluster, node_of
from tpux_slurm.host import SlurmHost
from tpux_testing.sandbox import Sandbox, provision_request

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
BIG = bytes(range(256)) * (20 * 1024 * 1024 // 256)


@pytest.fixture
def sandbox(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Return a store, in a shell in which Slurm's commands work."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.environment[name])
    with Sandbox() as one:
        yield one


@pytest.fixture
def worker(slurm: Cluster) -> Iterator[Worker]:
    """Return a node of a new job."""
    slurm.wait_until_idle()
    node = node_of(slurm)
    yield node
    with suppress(TpuxError):  # it has ended
        slurm.run("scancel", "--signal=USR2", node.details["job"])


def test_20_mb_and_exit_codes(sandbox: Sandbox, worker: Worker) -> None:
    """All bytes arrive in both directions, and what srun says is never in the output."""
    host = SlurmHost(worker, sandbox.job({"tpu": {"allocation_mode": "slurm"}}))
    try:
        assert host.run("cat", stdin=BIG, timeout=60).output == BIG
        for code in (0, 1, 7, 137):
            result = host.run(f"printf 'out'; exit {code}")
            assert (result.code, result.output) == (code, b"out")
    finally:
        host.close()


def test_a_job_that_has_ended_is_an_unreachable_worker(slurm: Cluster, sandbox: Sandbox, worker: Worker) -> None:
    """The message is srun's."""
    host = SlurmHost(worker, sandbox.job({"tpu": {"allocation_mode": "slurm"}}))
    assert host.run("true").ok
    slurm.run("scancel", "--signal=USR2", worker.details["job"])
    with pytest.raises(HostUnreachableError, match=f"{worker.address}: srun: "):
        host.run("sleep 10; true", timeout=20)
    host.close()


@pytest.mark.parametrize(
    ("tpu", "where"),
    [
        ({"partition": "nosuch"}, "tpu.partition"),
        ({"nodes": 9}, "tpu.nodes"),
        ({"gres": "gpu:9"}, "tpu.gres"),
        ({"sbatch": ["--export=API_KEY=1"]}, "tpu.sbatch"),
        ({"gres": "tpu:2", "nodes": 4, "partition": "high", "time": "1-0"}, ""),
    ],
)
def test_preflight(sandbox: Sandbox, slurm: Cluster, tpu: dict[str, object], where: str) -> None:
    """What the cluster does not have is found before anything is submitted."""
    found = preflight(sandbox.job({"tpu": {"allocation_mode": "slurm", **tpu}}))
    assert [finding.where for finding in found] == ([where] if where else [])
    assert all(isinstance(finding, Finding) and finding.level == "error" for finding in found)
    assert slurm.run("sinfo", "--version").startswith("slurm")


@pytest.mark.parametrize(
    ("tpu", "said"),
    [
        ({"partition": "nosuch"}, "Invalid partition name"),
        ({"gres": "gpu:9"}, "Invalid generic resource"),
        ({"nodes": 9}, "PartitionNodeLimit"),
    ],
)
def test_denied(sandbox: Sandbox, tmp_path: Path, slurm: Cluster, tpu: dict[str, object], said: str) -> None:
    """What can never start is denied, with what to change, and nothing is left of it."""
    job = sandbox.job({"tpu": {"allocation_mode": "slurm", **tpu}})
    request = provision_request(job, "denied", tmp_path)
    deadline = time.monotonic() + 60
    answer: Ready | Waiting | Denied = provision(request)
    while isinstance(answer, Waiting) and time.monotonic() < deadline:
        answer = provision(request)
    assert isinstance(answer, Denied)
    assert said in answer.failure.evidence
    assert answer.failure.hint
    while isinstance(release(request), Waiting):
        pass
    assert not slurm.run("squeue", "-h", "--name=denied")


def test_a_directory_that_cannot_be_written(sandbox: Sandbox, tmp_path: Path, slurm: Cluster) -> None:
    """The node's own words are in the failure."""
    slurm.wait_until_idle()
    (tmp_path / "file").write_text("")
    job = sandbox.job({"tpu": {"allocation_mode": "slurm", "node_directory": str(tmp_path / "file" / "below")}})
    request = provision_request(job, "unwritable", tmp_path)
    while isinstance(answer := provision(request), Waiting):
        pass
    assert isinstance(answer, Denied)
    assert "cannot write to" in answer.failure.evidence
    while isinstance(release(request), Waiting):
        pass


def test_a_full_disk(sandbox: Sandbox, tmp_path: Path, slurm: Cluster) -> None:
    """A full disk of the node is a failure that says so."""
    slurm.wait_until_idle()
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", full], check=True)
    try:
        (full / "x").write_bytes(b"x" * 4096)
        job = sandbox.job({"tpu": {"allocation_mode": "slurm", "node_directory": str(full / "jobs")}})
        request = provision_request(job, "full", tmp_path)
        while isinstance(answer := provision(request), Waiting):
            pass
        assert isinstance(answer, Denied)
        assert "No space left" in answer.failure.evidence
        while isinstance(release(request), Waiting):
            pass
    finally:
        subprocess.run(["umount", "-l", full], check=True)


def test_two_jobs_of_one_request_become_one(sandbox: Sandbox, tmp_path: Path, slurm: Cluster) -> None:
    """The older one is kept; a job of the same name without the token is not touched."""
    slurm.wait_until_idle()
    request = provision_request(sandbox.job({"tpu": {"allocation_mode": "slurm"}}), "twice", tmp_path)
    foreign = slurm.run("sbatch", "--parsable", "--job-name=twice", "--output=/dev/null", "--wrap", "sleep 60")
    provision(request)
    first = slurm.run("squeue", "-h", "--name=twice", "-o", "%i %k").split("\n")
    comment = next(line.split()[1] for line in first if "tpux:" in line)
    slurm.run(
        "sbatch", "--hold", "--job-name=twice", f"--comment={comment}", "--output=/dev/null", "--wrap", "sleep 60"
    )
    while isinstance(answer := provision(request), Waiting):
        pass
    assert isinstance(answer, Ready)
    left = slurm.run("squeue", "-h", "--name=twice", "-o", "%i").split()
    assert len(left) == 2
    assert foreign in left
    while isinstance(release(replace(request, saved_state=answer.saved_state or {})), Waiting):
        pass
    assert slurm.run("squeue", "-h", "--name=twice", "-o", "%i") == foreign
    slurm.run("scancel", foreign)


def test_a_suspended_job_is_not_lost(sandbox: Sandbox, tmp_path: Path, slurm: Cluster) -> None:
    """It is unknown while it is suspended, and ready when it runs again."""
    slurm.wait_until_idle()
    request = provision_request(sandbox.job({"tpu": {"allocation_mode": "slurm"}}), "suspended", tmp_path)
    while isinstance(answer := provision(request), Waiting):
        pass
    assert isinstance(answer, Ready)
    held = replace(request, saved_state=answer.saved_state or {})
    slurm.run("scontrol", "suspend", answer.allocation.name)
    status = inspect(held)
    assert (status.state, "SUSPENDED" in status.evidence) == ("unknown", True)
    wait_for(lambda: is_stopped(answer.allocation.name), "its processes are stopped")  # Slurm needs 2 s
    slurm.run("scontrol", "resume", answer.allocation.name)
    assert inspect(held).state == "ready"
    while isinstance(release(held), Waiting):
        pass
    assert inspect(held).state == "gone"


def is_stopped(job: str) -> bool:
    """Return whether the srun of a job's batch script is stopped or frozen; SIGTSTP before that does not stop it."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
            if words[0] == b"srun" and f"SLURM_JOB_ID={job}".encode() in variables:
                return (process / "stat").read_text().rpartition(")")[2].split()[0] in {"T", "D"}
    return False


def test_resolve_stores_what_the_commands_need(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret, and nothing of a Slurm job in which the shell runs."""
    for name in ("SLURM_JWT", "SLURM_JOB_ID", "API_KEY"):
        monkeypatch.setenv(name, "x")
    resolved = sandbox.job({"tpu": {"allocation_mode": "slurm"}}).resolved["slurm"]
    assert {"SLURM_CONF", "PATH"} <= {*resolved}
    assert not {"SLURM_JWT", "SLURM_JOB_ID", "API_KEY"} & {*resolve()}
