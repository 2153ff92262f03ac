"""Repairs of emulated TPU VMs: a cut network, a false state and a stop delete nothing and restart nothing that runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_gcp_e2e import cloud as cloud
from tpux.store import Store
from tpux.store.record import Record
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["cloud", "tpu_emulator"]
TPUX = Path(sys.executable).with_name("tpux")
NODE = "repair-000001"
# Each attempt leaves a process behind that holds the device and ignores SIGTERM, so that its end takes the solver 10 s.
# The second one waits until it is stopped: a TPU that is busy again after a repair would be a lost machine.
CONFIG = """
job: {{name: repair, rule: resume}}
tpu: {{allocation_mode: tpu-vm, accelerator: v4-16, zone: us-central2-b, project: emulated, endpoint: '{url}'}}
ssh: {{port: {port}}}
libtpu: {{devices: ['/tmp/accel*'], directory: /tmp/libtpu}}
solve: {{force: true}}
watch: {{lost_after: 10m}}
command:
  grace_period: 0
  cmd: |
    echo "attempt $TPUX_ATTEMPT" >>~/attempts
    if [ $TPUX_ATTEMPT = 2 ]; then sleep 1000; fi
    env -u TPUX_RUN_ID -u TPUX_RUN_HOME setsid python3 -c '
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    device = open("/tmp/accel0", "w")
    open("/tmp/holder", "w").write(str(os.getpid()))
    time.sleep(600)' >/dev/null 2>&1 &
    until [ -s /tmp/holder ]; do sleep 0.1; done
    echo "The TPU is already in use by process with pid $(cat /tmp/holder)"
    exit 1
"""


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def tpux(*words: str) -> str:
    done = subprocess.run([TPUX, *words], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repairs(record: Record, worker: int) -> int:
    """Return how often a solver has begun to end the process that holds the device."""
    log = record.logs / f"solve_worker_{worker}.log"
    return log.read_text().count("ending process ") if log.exists() else 0


@pytest.mark.system
@pytest.mark.timeout(400)
def test_nothing_is_deleted_and_nothing_restarted_that_runs(cloud: Emulator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CONFIG.format(url=cloud.url, port=cloud.ssh_port))
    tpux("create", str(tmp_path / "job.yaml"))
    record = Store().record("000001")

    def running(attempt: int) -> bool:
        state = record.refresh()
        return state.state == "running" and state.attempt == attempt and state.run.running

    # The network of a worker is cut while its solver runs, which goes on there.
    until(lambda: repairs(record, 0) and repairs(record, 1))
    cloud.cut(NODE, 1, how="refuse")
    time.sleep(3.0)  # some polls, which are refused
    assert record.refresh().state == "recovering"
    cloud.restore(NODE, 1)
    until(lambda: running(2))
    assert (repairs(record, 0), repairs(record, 1)) == (1, 1)
    held = tpux("exec", "1", "kill -0 $(cat /tmp/holder) 2>/dev/null || echo ended; rm /tmp/holder")
    assert held.count("ended") == 2

    # The cloud shows a false state while the program runs.
    cloud.fake_state(NODE, "PREEMPTED")
    until(lambda: "but the program runs on worker 0 and 1 more" in record.refresh().why)
    cloud.fake_state(NODE, None)
    until(lambda: record.refresh().why == "attempt 2")
    assert running(2)

    # A stop while the solvers run.
    tpux("stop", "1")
    tpux("resume", "1")
    until(lambda: repairs(record, 0) == 2 and repairs(record, 1) == 2)
    tpux("stop", "1")
    assert record.refresh().state == "stopped"
    script = "cat attempts; kill -0 $(cat /tmp/holder) && echo held; pgrep -af 'tpux/runs/.*[s]olve-' || echo none"
    left = tpux("exec", "1", script)
    assert [line.split("] ", 1)[1] for line in left.splitlines() if line.startswith("[1]")] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
        "held",
        "none",
    ]
    methods = [each.method for each in cloud.requests]
    assert (methods.count("nodes.create"), methods.count("nodes.delete")) == (1, 0)
    tpux("delete", "1", "--yes")
