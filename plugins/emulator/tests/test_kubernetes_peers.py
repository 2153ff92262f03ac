"""The Kubernetes API for clients of others: kubectl, and the official Python client, which checks every object."""

from __future__ import annotations

import importlib
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from emulator_kubernetes import JOBSETS, Api, find_kubectl, jobset, kubectl, until
from emulator_support import missing

from tpux_emulator.emulator import Emulator

pytestmark = [pytest.mark.process, pytest.mark.system]


@pytest.fixture(scope="module", params=["plain", "tls"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """A cluster with two pods, without and with TLS and tokens."""
    home = tmp_path_factory.mktemp("peers")
    with Emulator(home, workers=False, kubernetes=True, tls=request.param == "tls") as cloud:
        made = kubectl(cloud, "create", "--validate=false", "-f", "-", input=_yaml("t-ab12"))
        assert made.returncode == 0, made.stderr
        until(
            lambda: (
                kubectl(cloud, "get", "pods", "-o", "jsonpath={.items[*].status.phase}").stdout == b"Running Running"
            )
        )
        yield cloud


@pytest.fixture
def client(cluster: Emulator) -> Any:
    """The official Python client."""
    try:
        kubernetes = importlib.import_module("kubernetes")
    except ImportError:
        missing("the package kubernetes is not installed")
    kubernetes.config.load_kube_config(str(cluster.kubeconfig))
    importlib.import_module("kubernetes.stream")
    return kubernetes


def _yaml(name: str) -> bytes:
    return json.dumps(jobset(name)).encode()


def _pods(cloud: Emulator) -> list[str]:
    return kubectl(cloud, "get", "pods", "-o", "name").stdout.decode().split()


def test_kubectl_reads(cluster: Emulator) -> None:
    assert "Server Version: v1." in kubectl(cluster, "version").stdout.decode()
    resources = kubectl(cluster, "api-resources").stdout.decode()
    assert all(each in resources for each in ("jobset.x-k8s.io/v1alpha2", "kueue.x-k8s.io/v1beta2", "pods"))
    shown = kubectl(cluster, "get", "jobsets,pods,nodes,localqueues,clusterqueues,events,workloads").stdout.decode()
    assert "jobset.jobset.x-k8s.io/t-ab12" in shown
    assert "pod/t-ab12-slice-0-1-" in shown
    selected = kubectl(cluster, "get", "pods", "-l", "batch.kubernetes.io/job-completion-index=1", "-o", "name")
    assert len(selected.stdout.split()) == 1
    described = kubectl(cluster, "describe", _pods(cluster)[0])
    assert b"Successfully assigned" in described.stdout, described.stderr
    # It asks in protobuf, which this API does not speak, and says so.
    assert b"unknown format" in kubectl(cluster, "auth", "can-i", "create", "pods").stderr
    absent = kubectl(cluster, "get", "pod", "none")
    assert absent.returncode == 1
    assert b'pods "none" not found' in absent.stderr


def test_kubectl_patches_and_deletes(cluster: Emulator) -> None:
    assert kubectl(cluster, "create", "--validate=false", "-f", "-", input=_yaml("brief")).returncode == 0
    assert kubectl(cluster, "label", "jobset", "brief", "team=a").returncode == 0
    assert kubectl(cluster, "get", "jobsets", "-l", "team=a", "-o", "name").stdout == b"jobset.jobset.x-k8s.io/brief\n"
    assert kubectl(cluster, "delete", "jobset", "brief", "--wait=false").returncode == 0
    until(lambda: len(_pods(cluster)) == 2)


def test_kubectl_exec(cluster: Emulator) -> None:
    pod = _pods(cluster)[0]
    done = kubectl(cluster, "exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.returncode) == (b"out\n", 7)
    assert done.stderr.startswith(b"err\n")
    data = os.urandom(3_000_000)
    assert kubectl(cluster, "exec", "-i", pod, "--", "cat", input=data).stdout == data
    assert kubectl(cluster, "exec", pod, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert kubectl(cluster, "exec", pod, "--", "no-such-command").returncode == 126
    other = kubectl(cluster, "exec", pod, "-c", "other", "--", "true")
    assert (other.returncode, b"container not found" in other.stderr or b"not valid" in other.stderr) == (1, True)


def test_kubectl_exec_needs_v5(cluster: Emulator) -> None:
    cluster.change_kubernetes(exec_protocols=["v4.channel.k8s.io"])
    assert kubectl(cluster, "exec", _pods(cluster)[0], "--", "true").returncode == 1
    cluster.change_kubernetes(exec_protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])


def test_what_exec_starts_outlives_it(cluster: Emulator) -> None:
    pod = _pods(cluster)[0]
    start = "setsid --fork sh -c 'sleep 1; echo later > $HOME/later' > /dev/null 2>&1 < /dev/null; echo started"
    assert kubectl(cluster, "exec", pod, "--", "sh", "-c", start).stdout == b"started\n"
    until(lambda: kubectl(cluster, "exec", pod, "--", "sh", "-c", "cat $HOME/later").stdout == b"later\n")


def test_the_official_client_accepts_every_object(cluster: Emulator, client: Any) -> None:
    core, custom = client.client.CoreV1Api(), client.client.CustomObjectsApi()
    pods = core.list_namespaced_pod("default", label_selector="jobset.sigs.k8s.io/jobset-name=t-ab12", limit=1)
    assert pods.items[0].status.container_statuses[0].state.running.started_at
    assert pods.metadata._continue
    assert core.list_node().items[0].status.capacity["google.com/tpu"] == "4"
    assert core.list_namespaced_event("default").items[0].involved_object.name
    assert client.client.VersionApi().get_code().git_version
    review = client.client.V1SelfSubjectAccessReview(
        spec=client.client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.client.V1ResourceAttributes(verb="get", resource="pods", namespace="default")
        )
    )
    assert client.client.AuthorizationV1Api().create_self_subject_access_review(review).status.allowed
    found = custom.get_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", "default", "jobsets", "t-ab12")
    assert found["spec"]["replicatedJobs"][0]["replicas"] == 1
    with pytest.raises(client.client.ApiException) as absent:
        core.read_namespaced_pod("none", "default")
    assert absent.value.status == 404


@pytest.mark.parametrize("protocols", [["v5.channel.k8s.io", "v4.channel.k8s.io"], ["v4.channel.k8s.io"]])
def test_the_official_client_executes(cluster: Emulator, client: Any, protocols: list[str]) -> None:
    cluster.change_kubernetes(exec_protocols=protocols)
    core, name = client.client.CoreV1Api(), _pods(cluster)[0].partition("/")[2]
    channel = client.stream.stream(
        core.connect_get_namespaced_pod_exec, name, "default", command=["sh", "-c", "read a; echo got $a; exit 3"],
        stderr=True, stdin=True, stdout=True, tty=False, _preload_content=False,
    )  # fmt: skip
    channel.write_stdin("word\n")
    channel.run_forever(timeout=30)
    assert channel.read_stdout() == "got word\n"
    assert channel.returncode == 3
    cluster.change_kubernetes(exec_protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"])


def test_a_cut_connection_leaves_the_command(cluster: Emulator) -> None:
    pod = _pods(cluster)[0]
    mark = f"cut-{time.time_ns()}"
    with subprocess.Popen(
        [find_kubectl(), "exec", pod, "--", "sh", "-c", f"echo ready; sleep 2; echo done > $HOME/{mark}"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert cluster.kubernetes_fault("cut", pod=pod.partition("/")[2])["connections"] == 1
        assert child.wait(timeout=30) != 0
    until(lambda: kubectl(cluster, "exec", pod, "--", "sh", "-c", f"cat $HOME/{mark}").stdout == b"done\n")


def test_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Emulator(tmp_path_factory.mktemp("tokens"), workers=False, kubernetes=True, tls=True) as cloud:
        api, token_file = Api(cloud), cloud.home.path / "kubernetes/token"
        before = token_file.read_text()
        assert kubectl(cloud, "get", "jobsets").returncode == 0
        cloud.kubernetes_fault("expire-token")
        assert token_file.read_text() != before
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert kubectl(cloud, "get", "jobsets").returncode == 0
        for token, status in ((before, 401), (token_file.read_text(), 200)):
            headers = {"Authorization": f"Bearer {token}"}
            answer = httpx.get(
                api.url + JOBSETS,
                headers=headers,
                verify=ssl.create_default_context(cafile=str(cloud.home.path / "kubernetes/ca.pem")),
                trust_env=False,
            )
            assert answer.status_code == status


def test_pods_with_a_root_of_their_own(root: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Emulator(tmp_path_factory.mktemp("roots"), workers=False, kubernetes=True, pod_roots=True) as cloud:
        api = Api(cloud)
        body = jobset("rooted", command="trap 'exit 0' TERM; echo $$ > /run/pid; while :; do sleep 60 & wait $!; done")
        template = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        template["volumes"] = [{"name": "work", "emptyDir": {}}]
        template["containers"][0]["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
        api.create(body)
        first, second = (pod["metadata"]["name"] for pod in api.running("rooted", 2))
        assert kubectl(cloud, "exec", first, "--", "cat", "/run/pid").stdout == b"1\n"
        assert (
            kubectl(cloud, "exec", first, "--", "sh", "-c", "ls /work; echo x > /work/file; hostname").stdout
            == b"rooted-slice-0-0\n"
        )
        assert kubectl(cloud, "exec", second, "--", "ls", "/work").stdout == b""
        assert kubectl(cloud, "exec", second, "--", "sh", "-c", "exit 5").returncode == 5
        api.delete("rooted")
