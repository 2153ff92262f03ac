"""The example for Google Cloud on the emulator: four SSH workers, preempted once, finished, then all nodes deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["tpu_emulator"]
EXAMPLE = Path(__file__).parents[1] / "examples" / "v4-32-spot.yaml"
TPUX = Path(sys.executable).with_name("tpux")


def _unavailable() -> str:
    if sys.platform != "linux":
        return "workers need Linux"
    if os.geteuid() != 0:
        return "isolated workers need root"
    return "" if shutil.which("sshd") or Path("/usr/sbin/sshd").exists() else "sshd is not installed"


@pytest.fixture
def cloud(tpu_emulator: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    if reason := _unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    monkeypatch.setenv("TPUX_USER", "tester")
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "TPUX_GCP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    yield tpu_emulator()
    subprocess.run([TPUX, "supervisor", "stop"], check=False, timeout=100)


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_the_example_is_preempted_once_and_finishes(cloud: Emulator, tmp_path: Path, mode: str) -> None:
    config = tmp_path / "v4-32-spot.yaml"
    text = EXAMPLE.read_text().replace("http://127.0.0.1:9470", cloud.url)
    text = text.replace("allocation_mode: tpu-vm", f"allocation_mode: {mode}")
    # The first attempt runs until it is preempted, even on a slow machine.
    text = text.replace("sleep 1", "sleep 0.3; [ $step != 5 ] || [ $TPUX_RESUME = 1 ] || sleep 1000")
    config.write_text(text if cloud.ssh_port == 22 else f"{text}\nssh:\n  port: {cloud.ssh_port}\n")
    run = subprocess.Popen([TPUX, "run", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        sys.stdout.write(line)  # shown by pytest if the test fails
        if "step 3" in line and sum("step 3" in before for before in lines) == 4:
            cloud.preempt("v4-32-spot-000001")
    assert run.wait(100) == 0, "".join(lines)
    shown = json.loads(subprocess.run([TPUX, "show", "1", "--json"], check=True, capture_output=True).stdout)
    assert (shown["state"], shown["attempt"], shown["stage"], shown["preemptions"]) == ("succeeded", 2, 1, 1)
    assert _pinned(tmp_path / "tpux" / "jobs" / "tester" / "000001" / "events.jsonl") == 8
    hosts = {line.split(" on ")[1] for line in lines if " on t1v-" in line}
    assert len(hosts) == 8  # four workers, and four new ones
    assert sum("step 10" in line for line in lines) == 4
    _wait_until_everything_is_deleted(cloud)


def _pinned(events: Path) -> int:
    """Return how many workers were allocated with their published host keys."""
    history = [json.loads(line) for line in events.read_text().splitlines()]
    workers = [worker for event in history if event["type"] == "allocated" for worker in event["allocation"]["workers"]]
    return sum("ssh-ed25519 " in worker["details"].get("host_keys", "") for worker in workers)


def _wait_until_everything_is_deleted(cloud: Emulator) -> None:
    deadline = time.monotonic() + 100
    while (status := cloud.status())["nodes"] or status["queuedResources"]:
        assert time.monotonic() < deadline, status["nodes"]
        time.sleep(0.1)
