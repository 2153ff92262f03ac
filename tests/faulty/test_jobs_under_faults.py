"""A job whose supervisor or programs run into failing system calls, stopped processes and other versions goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.tiers import representative

SUPERVISOR = "*tpux.supervisor*"
GATED = (
    "command: {{cmd: 'echo up; until [ -e {go} ]; do echo $((n += 1)); sleep 0.1; done; echo end', grace_period: 1s}}\n"
)


@pytest.fixture
def gated(tpux):
    """Start a job that runs until the returned path exists."""
    go = tpux.work / "go"
    job = tpux.create(GATED.format(go=go))
    tpux.until(lambda: b"up" in tpux.output_so_far(job), "for the program")
    return job, go


def finish(tpux, job, go) -> None:
    """Let the program end, and check that it ran once and that its whole output is here."""
    go.touch()
    tpux("wait", job)
    shown = tpux.show(job)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 1)
    lines = tpux.output(job).split()
    assert lines[0] == b"up"
    assert lines[-1] == b"end"
    assert lines[1:-1] == [str(number).encode() for number in range(1, len(lines) - 1)], "nothing is lost or repeated"


@pytest.mark.system
@pytest.mark.parametrize(
    ("error", "calls", "path"),
    representative(
        [
            ("EIO", "open write sync", "*/events.jsonl"),
            ("ENOSPC", "open write rename", "*/state.json"),
            ("EACCES", "open write", "*/command_worker_0.log"),
            ("ENOSPC", "open write", "*/command_worker_0.log"),
            ("EIO", "stat open list", "*/requests*"),
        ]
    ),
)
def test_failing_calls_on_the_files_of_a_job(tpux, faults, gated, error, calls, path):
    job, go = gated
    rule = faults.fail(error, calls, path, times=5, process=SUPERVISOR)
    go.touch()
    if "requests" not in path:
        tpux.until(lambda: rule.hits, "for a call to fail")
    rule_ended = time.monotonic() + 60
    tpux.until(lambda: rule.used_up or time.monotonic() > rule_ended or tpux.show(job)["state"] == "succeeded")
    rule.stop()
    finish(tpux, job, go)


@pytest.mark.system
def test_failing_forks(tpux, faults, gated):
    job, go = gated
    with faults.fail("EAGAIN", "fork", process=SUPERVISOR, times=20) as rule:
        tpux("stop", job, "--no-wait")
        tpux.until(lambda: rule.hits, "for a fork to fail")
    tpux.until_state(job, "stopped")
    assert tpux.output(job).count(b"up\n") == 1
    tpux("resume", job)
    tpux.until(lambda: b"up" in tpux.output_so_far(job, attempt=2))
    go.touch()
    tpux("wait", job)


def test_a_stopped_supervisor_goes_on(tpux, gated):
    job, go = gated
    pid = tpux.supervisor()
    os.kill(pid, signal.SIGSTOP)
    before = len(tpux.output(job))
    assert tpux.show(job)["state"] == "running"
    os.kill(pid, signal.SIGCONT)
    tpux.until(lambda: len(tpux.output(job)) > before)
    finish(tpux, job, go)


def test_a_stopped_program_is_not_lost(tpux, gated):
    job, go = gated
    [session] = tpux.machines(job).glob("worker-0/.tpux/runs/*/*/command/session")
    pid = int(session.read_text())
    os.kill(pid, signal.SIGSTOP)
    tpux.until(lambda: tpux.show(job)["state"] == "running")
    os.kill(pid, signal.SIGCONT)
    finish(tpux, job, go)
