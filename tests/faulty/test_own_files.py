"""Errors of the supervisor's own files that pass: it is the same process afterwards, and its jobs have lost nothing."""

from __future__ import annotations

import pytest

from tests.tiers import representative

SUPERVISOR = "*tpux.supervisor*"


def gated(tpux) -> str:
    go = tpux.work / "go"
    job = tpux.create(f"command: {{cmd: 'echo up; until [ -e {go} ]; do sleep 0.05; done; echo down'}}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.events(job, "attempt-running"))
    return job


@pytest.mark.system
@pytest.mark.parametrize(
    ("error", "calls", "path"),
    representative(
        [
            ("EIO", "stat", "*/supervisor/*/wake"),
            ("EACCES", "stat", "*/supervisor/*/stop"),
            ("EIO", "stat", "*/supervisor/*/lock"),
            ("EACCES", "list", "*/requests"),
            ("EIO", "list", "*/jobs/*"),
            ("EACCES", "open read", "*/events.jsonl"),
            ("EIO", "open write sync", "*/jobs/*"),
        ],
        2,
    ),
)
def test_the_supervisor_survives_an_error(tpux, faults, error, calls, path):
    job = gated(tpux)
    pid = tpux.supervisor()
    rule = faults.fail(error, calls, f"{tpux.home}{path}", times=2, process=SUPERVISOR)
    tpux("create", tpux.config("command: {cmd: echo second}\n", "second.yaml"))  # which makes it scan
    tpux.until(lambda: rule.used_up or not tpux.alive(pid), "for the errors")
    tpux("wait", "2")
    assert tpux.supervisor() == pid
    (tpux.work / "go").touch()
    tpux("wait", job)
    assert tpux.output(job) == b"up\ndown\n"
    assert [len(tpux.events(each, "attempt-started")) for each in (job, "000002")] == [1, 1]


@pytest.mark.system
@pytest.mark.parametrize("path", representative(["/store.json", "/supervisor/*/lock"]))
def test_a_supervisor_starts_although_its_files_cannot_be_read_at_first(tpux, faults, path):
    job = gated(tpux)
    tpux.kill_supervisor()
    rule = faults.fail("EIO", "open", f"{tpux.home}{path}", times=1, process=SUPERVISOR)
    (tpux.work / "go").touch()
    tpux("wait", job)
    assert rule.used_up
    assert "cannot start yet, and tries again" in tpux.log()


@pytest.mark.system
def test_no_thread_for_a_turn_is_no_end(tpux, faults):
    job = gated(tpux)
    pid = tpux.supervisor()
    with faults.fail("EAGAIN", "thread", process=SUPERVISOR):
        tpux("create", tpux.config("command: {cmd: echo second}\n", "second.yaml"))
        tpux("wait", "2")  # the threads that were started at the beginning are enough
        assert tpux.alive(pid)
        (tpux.work / "go").touch()
        tpux("wait", job)
    assert tpux.output(job) == b"up\ndown\n"


def test_a_store_that_was_removed_ends_the_supervisor(tpux, faults):
    gated(tpux)
    pid = tpux.supervisor()
    tpux.home.rename(tpux.work / "elsewhere")
    tpux.until(lambda: not tpux.alive(pid))
    (tpux.work / "elsewhere").rename(tpux.home)
