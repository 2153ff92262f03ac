"""Processes that SIGKILL does not end, since they wait in the kernel for a mount whose server does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hanging_mount import hanging_mount
from tests.tiers import representative

PLUGIN = """
    from tpux import hookimpl, sh

    @hookimpl
    def setup():
        yield sh("COMMAND", timeout=TIMEOUT)
"""
CONFIG = "setup: {modules: [asks], tries: 1}\ncommand: {cmd: '', grace_period: 0.3s}\njob: {rule: pass}\n"


@pytest.fixture
def mount(tpux, tmp_path):
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    with hanging_mount(tmp_path / "mount"):
        yield tmp_path / "mount"


def hung(mount: Path) -> list[int]:
    """Return the processes that wait for the mount."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_text().rpartition(") ")[2]
        except OSError:
            continue
        if command.startswith(b"stat\0" + bytes(mount)) and not state.startswith("Z"):
            found.append(int(entry.name))
    return found


def create(tpux, mount: Path, cmd: str = "true", setup: str = "true", timeout: str = "3600", **job: str) -> str:
    """Create a job, and wait until a process of it hangs."""
    tpux.plugin("tpux-asks", PLUGIN.replace("COMMAND", setup).replace("TIMEOUT", timeout), entries="asks = tpux_asks")
    created = tpux.create(CONFIG.replace("''", f"'{cmd}'"), *(f"job.{key}={value}" for key, value in job.items()))
    tpux.until(lambda: hung(mount), "for a process that hangs")
    return created


def test_a_step_that_cannot_be_ended_fails_and_so_does_the_job(tpux, mount):
    job = create(tpux, mount, setup=f"stat {mount}/file", timeout="2")
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 0)
    problem = "it took longer than 2 s, and SIGKILL has not ended 1 process(es)"
    assert failure["evidence"] == f"asks: `stat {mount}/file` exited with 255: {problem}"
    assert hung(mount)


@pytest.mark.system
@pytest.mark.parametrize(("where", "prefix"), representative([("cmd", "exec "), ("cmd", ""), ("setup", "exec ")]))
def test_a_stop_says_which_processes_cannot_be_ended(tpux, mount, where, prefix):
    job = create(tpux, mount, **{where: f"{prefix}stat {mount}/file; true"})
    [pid] = hung(mount)
    tpux("stop", job, "--keep")
    tpux.until_state(job, "stopped")
    assert f"worker 0: process {pid} hangs in the kernel" in tpux.show(job)["why"]
    assert hung(mount) == [pid]


@pytest.mark.system
def test_a_stalled_program_that_cannot_be_ended_fails_and_nothing_runs_beside_it(tpux, mount):
    job = create(tpux, mount, cmd=f"exec stat {mount}/file", stalled_after="5s")
    [pid] = hung(mount)
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert failure["kind"] == "stalled"
    assert f"; worker 0: process {pid} hangs in the kernel" in failure["evidence"]
    tpux("resume", job)
    problem = f"worker 0: process {pid} of an earlier attempt hangs in the kernel"
    tpux.until(lambda: problem in tpux.show(job)["why"], "for why the program is not started")
    tpux("stop", job, "--keep")
    assert hung(mount) == [pid]
