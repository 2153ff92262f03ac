"""`tpux run fixed.yaml --on 1` on emulated TPUs: the node stays, and its labels and its release pass to the new job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_gcp_e2e import TPUX, cloud, tpu_emulator
from tpux_emulator.emulator import Emulator

CREATE_QUEUED = "queuedResources.create"
__all__ = ["cloud", "tpu_emulator"]


def tpux(*args: str | Path, code: int = 0) -> str:
    done = subprocess.run([TPUX, *args], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_fixed_config_runs_on_the_tpu_of_the_job_that_failed(cloud: Emulator, tmp_path: Path, mode: str) -> None:
    text = (
        f"tpu: {{allocation_mode: {mode}, accelerator: v4-8, zone: us-central2-b, endpoint: '{cloud.url}'}}\n"
        f"ssh: {{port: {cloud.ssh_port}}}\nwatch: {{verdict_grace: 2s}}\n"
    )
    broken, fixed, other = (tmp_path / name for name in ("broken.yaml", "fixed.yaml", "other.yaml"))
    broken.write_text(f"{text}command: {{cmd: 'echo $(hostname); exit 1'}}\n")
    fixed.write_text(f"{text}command: {{cmd: 'echo $(hostname); sleep 1'}}\n")
    other.write_text(fixed.read_text().replace("v4-8", "v4-16"))
    jobs = tmp_path / "tpux/jobs/tester"

    assert "run another config on them: tpux run CONFIG --on 1" in tpux("run", broken, code=100)
    assert "other ones than the config describes: tpu.accelerator" in tpux("run", other, "--on", "1", code=2)

    cloud.change(delays={"node.patch": 3600.0})  # the supervisor dies while it waits for this
    taken = tpux("create", fixed, "--on", "1")
    assert "created job 2" in taken
    until(lambda: '"taken-over"' in (jobs / "000002/events.jsonl").read_text())
    status = json.loads(tpux("supervisor", "status", "--json"))
    os.kill(status["pid"], signal.SIGKILL)
    cloud.change(delays={"node.patch": 0.0})
    until(lambda: json.loads(tpux("supervisor", "status", "--json"))["pid"] is None)
    states = [json.loads((jobs / f"00000{job}/state.json").read_text())["state"] for job in (1, 2)]
    assert [state["requested"] for state in states] == [True, True]
    assert (states[0]["transfer_to"], states[1]["transfer_from"]) == ("000002", "000001"), "job 2 has to release it"

    assert "job 2 is" in tpux("run", fixed, "--on", "2", code=2), "a live job needs its machines"
    tpux("logs", "-f", "2")
    shown = [json.loads(tpux("show", job, "--json")) for job in ("1", "2")]
    assert [job["state"] for job in shown] == ["failed", "succeeded"]
    until(lambda: json.loads(tpux("show", "1", "--json"))["held_until"] is None)
    hosts = [(jobs / f"00000{job}/logs/attempt-1/command_worker_0.log").read_text() for job in (1, 2)]
    assert hosts[0] == hosts[1], "the same VM"
    sent = [request for request in cloud.requests if request.method in {"nodes.patch", "nodes.create", CREATE_QUEUED}]
    assert len([request for request in sent if request.method != "nodes.patch"]) == 1
    owners = [patch.body["labels"]["tpux-job"] for patch in sent if "labels" in (patch.body or {})]
    assert "000002" in owners
    until(lambda: not cloud.status()["nodes"] and not cloud.status()["queuedResources"])
    assert "holds no machines" in tpux("run", fixed, "--on", "1", code=2)
    assert "job 1 (" in tpux("clean", "--rerun", "--dry-run"), "job 2 has replaced it"
