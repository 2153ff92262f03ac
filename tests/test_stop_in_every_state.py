"""A job stopped in each of its states: no process keeps running, and requested machines are released."""

from __future__ import annotations

import fcntl
import getpass
import os
import signal
from contextlib import contextmanager

import pytest

NEVER = """
    from pathlib import Path
    from tpux import Released, Waiting, hookimpl

    @hookimpl
    def provision(request):
        return Waiting("in the queue", 0.2)

    @hookimpl
    def release(request):
        (request.directory / "released").open("a").write(request.name + "\\n")
        return Released()
"""
SLOW = """
    from tpux import hookimpl, sh

    @hookimpl
    def check():
        yield sh("test -e ready")

    @hookimpl
    def setup(worker):
        if worker.index:
            yield sh("setsid sleep 1000 & echo $! > pid; sleep 1000")
        yield sh("until [ -e ../go ]; do sleep 0.1; done; exit 7")
"""


@contextmanager
def no_supervisor(tpux):
    """Hold the supervisor's lock, so that to the commands a supervisor seems to be running."""
    lock = tpux.home / "supervisor" / getpass.getuser() / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_while_pending(tpux):
    with no_supervisor(tpux):
        job = tpux.create("command: {cmd: echo never >> ran}\n")
        tpux("stop", job, "--no-wait")
        assert tpux.show(job)["state"] == "pending"
    tpux("wait", job, code=103)
    assert [event["to"] for event in tpux.events(job, "state-changed")] == ["stopping", "stopped"]
    assert tpux.events(job, "allocation-requested") == []


@pytest.mark.parametrize("how", [["stop"], ["delete", "-y"]])
def test_while_provisioning(tpux, how):
    tpux.plugin("tpux-never", NEVER, entries="never = tpux_never")
    job = tpux.create("tpu: {allocation_mode: never}\ncommand: {cmd: 'true'}\n")
    tpux.until(lambda: tpux.show(job)["why"] == "in the queue")
    directory = tpux.directory(job)
    tpux(*how, job)
    if how == ["delete", "-y"]:
        assert not directory.exists()
        assert tpux.json("list") == []
        return
    tpux.until(lambda: tpux.events(job, "released"))
    assert (directory / "machines/released").read_text().startswith(f"job-{job}-")
    assert tpux.show(job)["state"] == "stopped"
    tpux.until(lambda: tpux.supervisor() is None, "for the supervisor to exit")


@pytest.mark.parametrize("how", [["stop", "--release"], ["delete", "-y"]])
def test_what_an_allocator_may_not_delete_is_named(tpux, how):
    left = "TPU n has no labels of an owner and is left"
    code = NEVER.replace("return Released()", f"return Released({left!r})")
    tpux.plugin("tpux-left", code, entries="left = tpux_left")
    job = tpux.create("tpu: {allocation_mode: left}\ncommand: {cmd: 'true'}\n")
    tpux.until(lambda: tpux.show(job)["why"] == "in the queue")
    assert left in tpux(*how, job).stderr
    if how[0] == "stop":
        assert f"machines released, but {left}" in tpux("show", job).stdout
        assert left in tpux("delete", "-y", job).stderr


def test_while_setting_up(tpux):
    tpux.plugin("tpux-sleepy", SLOW, entries="sleepy = tpux_sleepy")
    job = tpux.create(
        "tpu: {accelerator: v4-16}\nsetup: {modules: [sleepy]}\ncommand: {cmd: 'true', grace_period: 1s}\n"
    )
    path = tpux.directory(job) / "machines/1/worker-1/pid"
    tpux.until(lambda: path.exists() and path.read_text().strip())
    daemon = int(path.read_text())
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"
    assert not tpux.alive(daemon)
    assert tpux.events(job, "attempt-started") == []


def test_a_failed_setup_terminates_the_setup_of_other_workers(tpux):
    tpux.plugin("tpux-sleepy", SLOW, entries="sleepy = tpux_sleepy")
    job = tpux.create(
        "tpu: {accelerator: v4-16}\nsetup: {modules: [sleepy], tries: 1}\ncommand: {cmd: 'true', grace_period: 1s}\n"
    )
    path = tpux.directory(job) / "machines/1/worker-1/pid"
    tpux.until(lambda: path.exists() and path.read_text().strip())
    daemon = int(path.read_text())
    (path.parent.parent / "go").touch()
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert (failure["kind"], failure["worker"]) == ("setup", 0)
    assert "exited with 7" in failure["evidence"]
    assert not tpux.alive(daemon)


def test_during_the_backoff(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "0.1"  # the backoff lasts longer than the commands take, even on a busy machine
    job = tpux.create("job: {rule: resume, max_restarts: {program: 9}}\ncommand: {cmd: exit 3}\n")
    tpux.until_state(job, "recovering")
    tpux("stop", job)
    assert tpux.show(job)["state"] == "stopped"
    assert tpux.show(job)["attempt"] == 1


def test_a_resume_continues_from_the_output_of_the_stopped_attempt(tpux):
    script = "echo previous=$TPUX_PREVIOUS_OUTPUT_DIR resume=$TPUX_RESUME; echo $TPUX_OUTPUT_DIR; sleep 1000"
    job = tpux.create(f"command: {{cmd: '{script}', grace_period: 1s}}\n")
    tpux.until(lambda: tpux.output_so_far(job).count(b"\n") == 2)
    first = tpux.output_so_far(job).split()[-1]
    tpux("cancel", job)
    tpux("resume", job)
    tpux.until(lambda: tpux.output_so_far(job, attempt=2).count(b"\n") == 2)
    assert tpux.output_so_far(job, attempt=2).startswith(b"previous=" + first + b" resume=1\n")
    tpux("stop", job)


def test_final_output_is_fetched(tpux):
    script = "trap 'echo saving; sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job = tpux.create(f'command:\n  cmd: "{script}"\n')
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("stop", job)
    assert b"saving\n" in tpux.output_so_far(job), "bash may print about its children in between"
    assert tpux.output_so_far(job).endswith(b"saved\n")
    assert tpux.show(job)["workers"][0]["exit_code"] == 0


def test_a_killed_runner_is_reported(tpux):
    """The runner on a worker is killed: the exit code is unknown, and the job reports that."""
    tpux.env["TPUX_CLOCK_RATE"] = "20"  # delays and polls are short
    job = tpux.create("command: {cmd: 'echo $PPID; sleep 1000', grace_period: 1s}\n")
    tpux.until(lambda: tpux.output_so_far(job).strip())
    tpux("supervisor", "stop")
    os.kill(int(tpux.output_so_far(job)), signal.SIGKILL)
    tpux("supervisor", "start")
    tpux("wait", job, code=100)
    failure = tpux.show(job)["failure"]
    assert failure["kind"] == "infra"
    assert "runner was killed" in failure["evidence"]
    assert len(tpux.events(job, "attempt-started")) == 1


def test_a_machine_that_was_restarted(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"  # delays and polls are short
    job = tpux.create("command: {cmd: 'echo $PPID; sleep 1000', grace_period: 1s}\n")
    tpux.until(lambda: tpux.events(job, "attempt-running") and tpux.output_so_far(job).strip())
    tpux("supervisor", "stop")
    started = next(tpux.machines(job).glob("worker-0/.tpux/runs/*/1/command/started"))
    started.write_text(f"00000000-0000-0000-0000-000000000000 {started.read_text().split()[1]}\n")
    os.kill(int(tpux.output_so_far(job)), signal.SIGKILL)
    tpux("supervisor", "start")
    tpux("wait", job, code=100)
    assert "the machine was restarted" in tpux.show(job)["failure"]["evidence"]
