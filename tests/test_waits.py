"""A command that waits says after 2 s for what."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

import pytest

# Machines whose release and connections wait while there is a file `slow` beside the plugin.
CLOUD = """
import time
from dataclasses import replace
from pathlib import Path
from tpux import Waiting, hookimpl
from tpux_local.section import LocalTpuSection
import tpux_local

HERE = Path(__file__).parent

class CloudSection(LocalTpuSection):
    transport = "cloud"

@hookimpl
def tpu_section(): return CloudSection
@hookimpl
def provision(request):
    answer = tpux_local.provision(request)
    return replace(answer, allocation=replace(answer.allocation, transport="cloud"))
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request):
    if (HERE / "slow").exists(): return Waiting("node n1 is DELETING", 0.2)
    return tpux_local.release(request)
@hookimpl
def connect(worker, job):
    while worker.index and (HERE / "slow").exists(): time.sleep(0.05)
    return tpux_local.connect(worker, job)
"""


@pytest.fixture
def slow(tpux):
    place = tpux.plugin("tpux-cloud", CLOUD, entries="cloud = tpux_cloud").parent / "slow"
    yield place
    place.unlink(missing_ok=True)


def stopped_job(tpux) -> str:
    job = tpux.create("tpu: {allocation_mode: cloud, node_count: 2}\ncommand: {cmd: sleep 1000, grace_period: 0}\n")
    tpux.until_state(job, "running")
    tpux("stop", job)
    return job


@contextmanager
def first_line(command, goes_on):
    """Read what a command prints first; then let it go on."""
    try:
        yield command.stderr.readline().decode()
        goes_on()
        assert command.wait(60) == 0, command.stderr.read()
    finally:
        command.kill()


def test_a_release_that_takes_long(tpux, slow):
    job = stopped_job(tpux)
    slow.touch()
    with first_line(tpux.popen("stop", job, "--release"), slow.unlink) as line:
        assert line == "tpux: waiting for job 1: stopped: node n1 is DELETING\n"


@pytest.mark.parametrize("command", [["exec", "1", "--host", "true"], ["cp", "job.yaml", "1:job.yaml"]])
def test_a_worker_that_does_not_answer(tpux, slow, command):
    stopped_job(tpux)
    slow.touch()
    with first_line(tpux.popen(*command), slow.unlink) as line:
        assert line == "tpux: waiting for worker 1 of job 1\n"


def test_a_supervisor_that_does_not_end(tpux):
    job = tpux.create("command: {cmd: sleep 1000}\n")
    tpux.until_state(job, "running")
    process = tpux.supervisor()
    os.kill(process, signal.SIGSTOP)
    with first_line(tpux.popen("supervisor", "stop"), lambda: os.kill(process, signal.SIGCONT)) as line:
        assert line == f"tpux: waiting for the supervisor to end, process {process}\n"


@pytest.mark.parametrize("hook", ["resolve", "preflight"])
def test_a_plugin_that_checks_the_config_for_long(tpux, slow, hook):
    code = "import time\nfrom pathlib import Path\nfrom tpux import hookimpl\n@hookimpl\ndef check(): yield from ()\n"
    code += f"@hookimpl\ndef {hook}():\n    while Path({str(slow)!r}).exists(): time.sleep(0.05)\n"
    tpux.plugin("tpux-code2", code, entries="code2 = tpux_code2")
    slow.touch()
    config = tpux.config("setup: {modules: [code2]}\ncommand: {cmd: 'true'}\n")
    with first_line(tpux.popen("preflight", config), slow.unlink) as line:
        assert line.startswith("tpux: waiting for the plugin code2 to ")
