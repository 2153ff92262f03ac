"""Locks that do not work."""

from __future__ import annotations

import pytest

RUNS = "command: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done'}\n"


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
