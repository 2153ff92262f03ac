"""Jobs on the emulated cluster: they end, lose pods of every cause, wait for quota and nodes, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import cast

import pytest
from gke_support import QUICK, Jobs, wait_for

from tpux import JsonValue, ProvisionRequest
from tpux_emulator.emulator import Emulator
from tpux_gke.allocator import find_orphans
from tpux_gke.client import JOBSETS
from tpux_gke.cluster import find
from tpux_gke.manifest import jobset
from tpux_gke.objects import uid_of
from tpux_gke.section import GkeTpuSection
from tpux_testing import CommandLine

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


def test_two_slices_of_four_hosts(jobs: Jobs) -> None:
    """Workers are ordered by slice and host; each has its environment; the logs of all are there; nothing is left."""
    words = '"$TPUX_WORKER $MEGASCALE_SLICE_ID $MEGASCALE_NUM_SLICES $TPU_WORKER_ID $TPU_ACCELERATOR_TYPE"'
    names = '"$TPU_WORKER_HOSTNAMES"'
    script = f'echo {words} >$S/env-$TPUX_WORKER; echo {names} >$S/names-$TPUX_WORKER; echo "log of $TPUX_WORKER"'
    job = jobs.start(script, accelerator="v6e-16", slices=2)
    jobs.until(job, "succeeded")
    lines = [(jobs.shared / f"env-{worker}").read_text().split() for worker in range(8)]
    assert lines == [[str(w), str(w // 4), "2", str(w % 4), "v6e-16"] for w in range(8)]
    assert len((jobs.shared / "names-0").read_text().split(",")) == 4
    for worker in range(8):
        assert f"log of {worker}" in jobs.cli("logs", job, "--worker", str(worker)).stdout
    jobs.cli("delete", job, "-y")
    wait_for(lambda: not jobs.jobsets(), "no JobSet is left")
    assert not jobs.cluster.kubernetes()["pods"]


def test_spot_preemption(jobs: Jobs) -> None:
    """SIGTERM reaches the program at once, it saves, and a new JobSet resumes it from there."""
    job = jobs.start(capacity="spot")
    jobs.starts(worker=1)
    jobs.starts()
    time.sleep(0.5)
    at = time.time()
    jobs.cluster.kubernetes_fault("preempt", pod=jobs.pod(0, 1))
    termed = wait_for(lambda: (jobs.shared / "termed-1").exists() and (jobs.shared / "termed-1").read_text(), "SIGTERM")
    assert float(termed) >= at
    (_, first), (attempt, resumed) = jobs.starts(2, worker=1)
    assert (first, attempt) == ("0", "2")
    assert int(resumed) > 0
    jobs.finish()
    jobs.until(job, "succeeded")
    (failure,) = jobs.ended(job)
    assert failure["kind"] == "preempted"
    assert "SIGTERM" in str(failure["evidence"]) or "node shutdown" in str(failure["evidence"])


def test_kueue_preemption(jobs: Jobs) -> None:
    """A job of a higher priority takes the quota; the other waits with Kueue's words, and resumes."""
    jobs.cluster.change_kubernetes(quota=8)
    low = jobs.start(queue="tpu-queue", priority="low")
    jobs.starts()
    ends = jobs.shared / "high"
    high = jobs.start(f"until [ -e {ends} ]; do sleep 0.1; done", queue="tpu-queue", priority="high")
    jobs.until_said(low, "queued in tpu-queue")
    assert "quota" in json.dumps(jobs.show(low)).lower()
    ends.touch()
    jobs.until(high, "succeeded")
    jobs.cli("delete", high, "-y")
    (_, _), (attempt, resumed) = jobs.starts(2)
    assert attempt == "2"
    assert int(resumed) > 0
    jobs.finish()
    jobs.until(low, "succeeded")
    assert [failure["kind"] for failure in jobs.ended(low)] == ["preempted"]


def test_host_error(jobs: Jobs) -> None:
    """A host that is gone without SIGTERM ends the attempt as preempted, with its node's words."""
    job = jobs.start(rule="pre")
    jobs.starts(worker=1)
    jobs.cluster.kubernetes_fault("host-error", pod=jobs.pod(0, 1))
    jobs.starts(2, worker=1)
    jobs.finish()
    jobs.until(job, "succeeded")
    (failure,) = jobs.ended(job)
    assert failure["kind"] == "preempted"


def test_maintenance(jobs: Jobs) -> None:
    """A node that is about to be taken away ends the attempt as maintenance, with its taint."""
    job = jobs.start(rule="pre")
    jobs.starts(worker=1)
    jobs.cluster.kubernetes_fault("maintenance", pod=jobs.pod(0, 1))
    failure = wait_for(lambda: jobs.ended(job), "the attempt has ended", 60)[0]
    assert failure["kind"] == "maintenance"
    assert "impending-node-termination" in str(failure["evidence"])
    jobs.cli("stop", job)


def test_image_that_cannot_be_pulled(jobs: Jobs) -> None:
    """The job fails with the pod's words, and nothing is left."""
    job = jobs.start(image="wrong")
    shown = json.dumps(jobs.until(job, "failed"))
    assert "Failed to pull image" in shown
    assert "tpu.image" in shown
    jobs.cli("delete", job, "-y")
    wait_for(lambda: not jobs.jobsets(), "no JobSet is left")


def test_image_that_cannot_be_pulled_yet(jobs: Jobs) -> None:
    """The job waits with the registry's words, and runs once it has answered."""
    limit = "rpc error: code = Unknown desc = 429 Too Many Requests: toomanyrequests"
    jobs.cluster.change_kubernetes(images=[], pull_error=limit, retry=0.1)
    job = jobs.start("true")
    jobs.until_said(job, "toomanyrequests")
    wait_for(lambda: jobs.failed_pulls() > 5, "it is pulled again and again")
    assert jobs.show(job)["state"] == "provisioning"
    jobs.cluster.change_kubernetes(images=["good*"])
    jobs.until(job, "succeeded")


def test_image_without_a_shell(jobs: Jobs) -> None:
    """The job fails with the container's words, after three JobSets."""
    pod: JsonValue = {"spec": {"containers": [{"name": "main", "command": ["/no/shell"]}]}}
    before = len(jobs.cluster.requests)
    job = jobs.start(pod=pod)
    shown = json.dumps(jobs.until(job, "failed"))
    assert "container main: " in shown
    assert "sh, coreutils" in shown
    made = [one for one in jobs.cluster.requests[before:] if one.method == "kube.jobsets.create"]
    assert len(made) == 3
    jobs.cli("delete", job, "-y")
    wait_for(lambda: not jobs.jobsets(), "no JobSet is left")


def test_jobset_is_uninstalled(jobs: Jobs) -> None:
    """Its JobSets and their pods go with it: the job fails with what is missing, and nothing holds up its deletion."""
    job = jobs.start(rule="pre")
    jobs.starts(worker=1)
    jobs.cluster.change_kubernetes(jobset=False)
    assert "does not serve jobset.x-k8s.io" in json.dumps(jobs.until(job, "failed"))
    jobs.cli("delete", job, "-y")
    assert not jobs.cluster.kubernetes()["pods"]


def test_no_node_pool(jobs: Jobs) -> None:
    """Without capacity the job waits with the scheduler's words, until its own limit."""
    jobs.cluster.change_kubernetes(node_pools=[])
    # Of a shape of its own: a pool that the cluster made for an earlier test may still be there.
    job = jobs.start(provision_timeout="20s", accelerator="v6e-32")
    jobs.until(job, "failed")
    assert any("nodes are available" in str(event) for event in jobs.events(job) if event["type"] == "waiting")


def test_out_of_memory_is_not_restarted_for_ever(jobs: Jobs) -> None:
    """The job fails as out of memory: new pods would end in the same way."""
    job = jobs.start(rule="pre", capacity="spot")
    jobs.starts(worker=1)
    jobs.cluster.kubernetes_fault("oom", pod=jobs.pod(0, 1))
    shown = json.dumps(jobs.until(job, "failed"))
    assert "out-of-memory" in shown
    assert "OOMKilled" in shown
    assert len(jobs.starts(worker=1)) == 1


def test_resume_after_out_of_memory(jobs: Jobs) -> None:
    """A user who resumes a job has mended something: what has ended its pods before is not held against it."""
    job = jobs.start()
    jobs.starts(worker=1)
    jobs.cluster.kubernetes_fault("oom", pod=jobs.pod(0, 1))
    jobs.until(job, "failed")
    jobs.cli("resume", job)
    jobs.starts(2)
    jobs.finish()
    jobs.until(job, "succeeded")


@pytest.mark.parametrize("method", ["kube.jobsets.create", "kube.jobsets.get", "kube.pods.list", "kube.jobsets.delete"])
def test_killed_supervisor_and_lost_answer(jobs: Jobs, method: str) -> None:
    """After SIGKILL during a request whose answer is lost there is one JobSet, one attempt, and nothing at the end."""
    deletes = method.endswith("delete")
    if not deletes:
        jobs.cluster.lose(method, count=1)
    job = jobs.start()
    if deletes:
        jobs.starts()
        jobs.cluster.lose(method, count=1)
        jobs.finish()
    wait_for(lambda: any(one.method == method for one in jobs.cluster.requests), method)
    os.kill(jobs.supervisor(), signal.SIGKILL)
    jobs.cli("list")
    if not deletes:
        jobs.starts()
        assert len(jobs.jobsets()) == 1
        jobs.finish()
    jobs.until(job, "succeeded")
    assert len(jobs.starts()) == 1
    jobs.cli("delete", job, "-y")
    wait_for(lambda: not jobs.jobsets() and not jobs.cluster.kubernetes()["pods"], "nothing is left")


def test_api_down_and_throttled(jobs: Jobs) -> None:
    """While the API does not answer for a minute, or says 429, the program runs on; a job without machines waits."""
    job = jobs.start(lost_after="180s")
    jobs.starts()
    jobs.cluster.drop("kube.*", lasting=60)
    down = time.monotonic()
    waiting = jobs.start("true")
    jobs.until_said(waiting, "does not answer", 30)
    jobs.until_said(job, "does not answer", 50)
    time.sleep(max(0.0, down + 61 - time.monotonic()))
    assert jobs.show(job)["state"] == "running"
    jobs.cluster.clear()
    jobs.cluster.rule("error", method="kube.*", status=429, message="too many requests", count=20)
    jobs.until_said(waiting, "as the API asks")
    jobs.until(waiting, "succeeded")
    jobs.finish()
    jobs.until(job, "succeeded")
    assert len(jobs.starts()) == 1


def test_login_that_is_refused(tpux_cli: CommandLine, tmp_path: Path) -> None:
    """The program runs on, it is said what to do, and the job goes on once the token file has a good one."""
    with Emulator(tmp_path / "tls", workers=False, kubernetes=True, tls=True) as cluster:
        cluster.change_kubernetes(**QUICK)
        tpux_cli.env["KUBECONFIG"] = str(cluster.home.kubeconfig)
        jobs = Jobs(cluster, tpux_cli)
        job = jobs.start(lost_after="180s")
        jobs.starts()
        file = cluster.home.kubernetes / "token"
        cluster.kubernetes_fault("expire-token")
        good = file.read_text()
        file.write_text("expired")
        jobs.until_said(job, "log in again")
        assert jobs.show(job)["state"] == "running"
        file.write_text(good)
        jobs.finish()
        jobs.until(job, "succeeded")
        assert len(jobs.starts()) == 1
        jobs.cli("delete", job, "-y")


def test_jobset_of_another_team(jobs: Jobs) -> None:
    """A JobSet of the same name that is not the job's makes the job fail, and is left as it is."""
    job = jobs.start(name="shared-name")
    jobs.starts()
    (own,) = jobs.jobsets()
    jobs.cli("stop", job, "--release")
    wait_for(lambda: not jobs.jobsets(), "no JobSet is left")
    name = str(cast("dict[str, JsonValue]", own["metadata"])["name"])
    other: dict[str, JsonValue] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"team": "other"}},
        "spec": own["spec"],
    }
    made = jobs.api.request("POST", jobs.api.namespaced(JOBSETS, "jobsets"), body=other)
    jobs.cli("resume", job)
    shown = json.dumps(jobs.until(job, "failed"))
    assert "is not of this job" in shown
    jobs.cli("delete", job, "-y")
    (left,) = jobs.jobsets()
    assert uid_of(left) == uid_of(made)
    assert not left["metadata"].get("deletionTimestamp")  # type: ignore[union-attr]
    jobs.api.request("DELETE", jobs.api.namespaced(JOBSETS, "jobsets", name))
    wait_for(lambda: not jobs.cluster.kubernetes()["pods"], "its pods are gone")


def test_command_of_an_orphan(jobs: Jobs, kubectl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real kubectl deletes the JobSet that it names, in a shell that knows another cluster."""
    config = jobs.cluster.home.kubeconfig.read_text().replace('"emulated"', '"the emulator\'s"')
    given = jobs.cli.work / "my configs"
    given.write_text(config)
    jobs.cluster.change_kubernetes(node_pools=[])
    tpu = GkeTpuSection.model_validate({"accelerator": "v6e-8", "image": "good", "kubeconfig": str(given)})
    owner = {"tpux-store": "s1", "tpux-job": "000007"}
    made = jobset(ProvisionRequest("orphan", tpu, None, owner, (), jobs.cli.work), tpu)
    jobs.api.create_jobset(made)
    monkeypatch.setattr("tpux.api.machines.store_id", lambda: "s1")
    monkeypatch.setattr("tpux.api.machines.is_active", lambda _: False)
    (orphan,) = find_orphans([find(tpu).to_json()])
    path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", orphan.command], env={"PATH": path, "HOME": str(jobs.cli.work)}, check=True)
    wait_for(lambda: not jobs.jobsets(), "it is deleted")


def test_kubectl_shows_what_tpux_shows(jobs: Jobs, kubectl: str) -> None:
    """A person can look with kubectl, by the labels of the job."""
    job = jobs.start()
    jobs.starts()
    done = subprocess.run(
        [kubectl, "get", "jobsets,pods", "-l", f"tpux-job={int(job):06d}"],
        env={**jobs.cli.env, "HOME": str(jobs.cli.work)},
        capture_output=True,
        text=True,
        check=True,
    )
    (name,) = jobs.names()
    assert f"jobset.jobset.x-k8s.io/{name}" in done.stdout
    pods = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("pod/")]
    assert len(pods) == 2
    shown = jobs.cli("show", job).stdout + json.dumps(jobs.show(job))
    assert name in shown
    assert all(pod.removeprefix("pod/") in shown for pod in pods)
    jobs.finish()
    jobs.until(job, "succeeded")
