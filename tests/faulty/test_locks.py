"""Locks that do not work, and a supervisor of another machine on a shared file system."""

from __future__ import annotations

import json
import os
import threading

import pytest

RUNS = "command: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done'}\n"
ELSEWHERE = {"pid": 1, "host": "tpu-login-2", "machine": "f00d", "started": "2026-01-01T00:00:00+00:00"}
ELSEWHERE |= {"environment": {}, "installation": {"version": "1", "prefix": "/", "package": "/"}}


def test_a_file_system_without_locks_is_reported(tpux, faults):
    path = tpux.config("command: {cmd: echo fine}\n")
    with faults.fail("ENOLCK", "lock"):
        done = tpux("create", path, code=1)
    assert "the file system cannot lock files: No locks available" in done.stderr
    assert "on NFS its lock service must run; or set TPUX_HOME" in done.stderr
    tpux("run", path)


@pytest.mark.system
def test_locks_without_effect_are_reported(tpux, faults):
    with faults.fail("NONE", "lock"):
        done = tpux("create", tpux.config("command: {cmd: echo fine}\n"), code=1)
    assert "the file system cannot lock files: a lock that is held has no effect" in done.stderr
    assert tpux.json("list") == []


@pytest.mark.system
def test_a_supervisor_survives_a_lock_manager_that_restarts(tpux, faults):
    go = tpux.work / "go"
    job = tpux.create(RUNS.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    rule = faults.fail("ENOLCK", "lock", "*/locks/*", times=2, process="*tpux.supervisor*")
    tpux("create", tpux.config("command: {cmd: echo second}\n", "second.yaml"))
    tpux.until(lambda: rule.used_up)
    tpux("wait", "2")
    go.touch()
    tpux("wait", job)


def test_nothing_is_driven_while_a_supervisor_of_another_machine_lives(tpux):
    """Its lock is not valid here: that is what this test imitates."""
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    go = tpux.work / "go"
    job = tpux.create(RUNS.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("supervisor", "stop")
    lock = next(tpux.home.glob("supervisor/*/lock"))
    assert lock.read_text().strip() == "", "a supervisor that has ended is not waited for"
    lock.write_text(json.dumps(ELSEWHERE))
    ended = threading.Event()

    def live() -> None:
        while not ended.wait(0.1):
            os.utime(lock)

    other = threading.Thread(target=live)
    other.start()
    try:
        go.touch()
        assert "the supervisor on host tpu-login-2 drives your jobs" in tpux("supervisor", "start", code=1).stderr
        assert tpux.events(job, "attempt-ended") == []
    finally:
        ended.set()
        other.join()
    tpux("wait", job)  # which starts a supervisor, since the other one gives no sign of life any more


def test_a_supervisor_ends_that_another_machine_has_replaced(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    go = tpux.work / "go"
    job = tpux.create(RUNS.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    pid = tpux.supervisor()
    lock = next(tpux.home.glob("supervisor/*/lock"))
    lock.write_text(json.dumps(ELSEWHERE))
    tpux.until(lambda: not tpux.alive(pid))
    assert "a supervisor of host tpu-login-2 has taken over" in tpux.log()
    assert json.loads(lock.read_text()) == ELSEWHERE
    go.touch()
    tpux("wait", job)
