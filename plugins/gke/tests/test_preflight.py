"""What `tpux preflight` says of a cluster that lacks something, before anything is created."""

from __future__ import annotations

import pytest
from gke_support import Jobs

from tpux import JsonValue

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def said(jobs: Jobs, **tpu: JsonValue) -> str:
    """Return what `tpux preflight` prints."""
    done = jobs.cli("preflight", jobs.config("true", "", "", "60s", **tpu), code=None)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_what_the_cluster_lacks(jobs: Jobs) -> None:
    """JobSet, the queue, a permission, the image: each is named with what to do."""
    assert said(jobs, queue="tpu-queue").startswith("0 ")
    other = said(jobs, queue="other")
    assert "there is no LocalQueue other" in other
    assert "kubectl --context emulated --namespace default get localqueues" in " ".join(other.split())
    assert "the pods need an image" in said(jobs, image=None)
    assert "unknown accelerator" in said(jobs, accelerator="v9-8")
    jobs.cluster.change_kubernetes(denied=["create pods/exec"], queue_stopped=True)
    assert "you may not create pods/exec" in said(jobs)
    jobs.cluster.change_kubernetes(denied=["list events"])
    assert "you may not list events" in said(jobs)
    jobs.cluster.change_kubernetes(denied=[])
    assert "LocalQueueStopped" in said(jobs, queue="tpu-queue")
    jobs.cluster.change_kubernetes(jobset=False)
    assert "does not serve JobSet" in said(jobs)


def test_storage_that_ends_with_the_pods(jobs: Jobs) -> None:
    """The creation of a job warns of it."""
    volumes: JsonValue = {"/scratch": {"emptyDir": {}}}
    create = ("create", jobs.config("true", volumes=volumes, storage="/scratch/runs"), "job.output_dir=/scratch/out")
    warned = jobs.cli(*create).stderr
    assert "tpu.storage: /scratch/runs is on a volume that ends with its pod (emptyDir)" in warned
    assert "job.output_dir: /scratch/out is on a volume that ends with its pod (emptyDir)" in warned
    assert "persistentVolumeClaim" in warned
    volumes = {"/data": {"persistentVolumeClaim": {"claimName": "data"}}}
    assert "ends with" not in jobs.cli("create", jobs.config("true", volumes=volumes, storage="/data/runs")).stderr
