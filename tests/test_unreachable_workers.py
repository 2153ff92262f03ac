"""Workers that do not answer, in whatever way: a delete tries each of them once, and holds no job for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

TRANSPORT = """
import time
from dataclasses import replace
from pathlib import Path
from tpux import HostUnreachableError, MachineStatus, Ready, TpuxError, hookimpl
import tpux_local

HERE = Path(__file__).parent

class Host:
    def __init__(self, host):
        self.worker, self._host = host.worker, host
        for name in ("run", "follow", "put", "get", "read"):
            setattr(self, name, self._checked(getattr(host, name)))
    def _checked(self, call):
        def checked(*args, **kwargs):
            answer()
            return call(*args, **kwargs)
        return checked
    def close(self): self._host.close()

def answer():
    (HERE / "tried").open("a").write(".")
    how = (HERE / "how").read_text()
    if how == "refused": raise HostUnreachableError("connection refused")
    if how == "closed": raise HostUnreachableError("connection closed; it said: not allowed")
    if how == "user": raise HostUnreachableError("permission denied (publickey)")
    if how == "hanging":
        time.sleep(1)
        raise HostUnreachableError("no answer within 1 s")
    if how == "wrong": raise RuntimeError("no such attribute")

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request):
    ready = tpux_local.provision(request)
    return Ready(replace(ready.allocation, transport="note", borrowed=True)) if isinstance(ready, Ready) else ready
@hookimpl
def inspect(request): return MachineStatus("ready")
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job):
    answer()
    return Host(tpux_local.connect(worker, job))
"""
CONFIG = """
tpu: {allocation_mode: note}
watch: {lost_after: 100h}
command: {cmd: echo started; sleep 1000, grace_period: 1s}
"""


@pytest.fixture
def note(tpux) -> Path:
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", TRANSPORT, entries="note = tpux_note").parent
    (note / "how").write_text("")
    return note


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("how", ["refused", "closed", "hanging", "user", "wrong"])
def test_a_job_whose_worker_was_never_reached_is_deleted(tpux, note, how, force):
    (note / "how").write_text(how)
    job = tpux.create(CONFIG)
    tpux.until((note / "tried").exists, "for the first login")
    done = tpux("delete", job, "--yes", *(["--force"] if force else []))
    assert f"job {int(job)} deleted" in done.stderr
    assert "may still run" not in done.stderr  # nothing was started


@pytest.mark.parametrize("how", ["refused", "hanging", "wrong"])
def test_a_job_whose_worker_is_lost_while_its_program_runs_is_deleted_with_a_warning(tpux, note, how):
    job = tpux.create(CONFIG)
    tpux.until(lambda: tpux.output_so_far(job) == b"started\n", "for the program to run")
    (note / "how").write_text(how)
    done = tpux("delete", job, "--yes")
    assert f"job {int(job)} removed; programs may still run on worker 0 (" in done.stderr


@pytest.mark.parametrize("how", ["refused", "wrong"])
def test_a_worker_that_was_never_reached_does_not_hold_a_stop(tpux, note, how):
    (note / "how").write_text(how)
    job = tpux.create(CONFIG)
    tpux.until((note / "tried").exists, "for the first login")
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"


def test_a_transport_that_never_works_fails_the_job_after_eight_tries(tpux, note):
    (note / "how").write_text("wrong")
    job = tpux.create(CONFIG)
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert failure["kind"] == "plugin"
    assert "failed in connect: RuntimeError: no such attribute" in failure["evidence"]
