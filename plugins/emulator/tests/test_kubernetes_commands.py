"""The commands of docs/emulator.md for the Kubernetes API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulator_kubernetes import Api, condition, jobset, reason, until

from tpux_emulator.emulator import Emulator
from tpux_emulator.paths import Home

pytestmark = pytest.mark.process


def emulator(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TPUX_EMULATOR_HOME": str(home)}
    command = [sys.executable, "-m", "tpux_emulator", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    emulator(tmp_path / "home", "reset")


@pytest.mark.system
def test_the_commands_of_the_page(home: Path) -> None:
    started = emulator(home, "start", "--detach", "--no-workers", "--port", "0", "--kubernetes", "0", "--tls")
    assert started.returncode == 0, started.stderr
    assert f"kubeconfig is {home}/kubeconfig" in started.stdout
    assert f"export KUBECONFIG={home}/kubeconfig" in emulator(home, "env").stdout
    token = (home / "kubernetes/token").read_text()
    assert emulator(home, "expire-token").returncode == 0
    assert (home / "kubernetes/token").read_text() != token
    assert emulator(home, "stop").returncode == 0
    assert emulator(home, "start", "--detach", "--no-workers", "--port", "0", "--kubernetes", "0").returncode == 0
    cloud = Emulator(home)
    cloud.home = Home(home)
    api = Api(cloud)
    assert emulator(home, "cluster", "quota=8", 'images=["python:*"]', "start=0.01").returncode == 0
    api.create(jobset("t-ab12", labels={"kueue.x-k8s.io/queue-name": "tpu-queue"}))
    pods = api.running("t-ab12", 2)
    assert "connections=0" in emulator(home, "pod", "cut", "t-ab12-slice-0-1").stdout
    assert emulator(home, "kueue-evict", "t-ab12", "--requeue", "1s").returncode == 0
    until(lambda: reason(api.workload("t-ab12"), "Requeued") == "Preempted")
    again = until(
        lambda: {p["metadata"]["uid"] for p in api.running("t-ab12", 2)} - {p["metadata"]["uid"] for p in pods}
    )
    assert len(again) == 2
    assert "node=gke-" in emulator(home, "pod", "preempt", "t-ab12-slice-0-1", "--notice", "1s").stdout
    until(lambda: condition(api.get("t-ab12"), "Failed") == "True")
    assert emulator(home, "reset").returncode == 0
    assert sorted(path.name for path in home.iterdir()) == ["lock"]


@pytest.mark.system
def test_errors_of_the_commands(home: Path) -> None:
    assert emulator(home, "start", "--detach", "--no-workers", "--port", "0").returncode == 0
    nothing = emulator(home, "pod", "preempt", "x")
    assert nothing.returncode != 0
    assert "this emulator has no Kubernetes API" in nothing.stderr
    assert "--kubernetes 0" in nothing.stderr
    emulator(home, "stop")
    assert emulator(home, "start", "--detach", "--no-workers", "--port", "0", "--kubernetes", "0").returncode == 0
    for words, error in (
        (("pod", "preempt", "x"), "there are no Pod objects with the name 'x'; there are: none"),
        (("pod", "explode", "x"), "is not one of preempt"),
        (("cluster", "quota"), "is not NAME=VALUE"),
        (("cluster", "quotas=1"), "quotas"),
        (("expire-token",), "without `--tls` there are no tokens"),
    ):
        refused = emulator(home, *words)
        assert refused.returncode != 0
        assert error in re.sub(r"\s+", " ", refused.stderr), refused.stderr
        assert "Traceback" not in refused.stderr
