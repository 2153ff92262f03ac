"""Several requests to one job: they are applied in order, stops merge, and nothing follows a delete."""

from __future__ import annotations

import re

import pytest

from tests.test_stop_in_every_state import no_supervisor

PAID = """
    from dataclasses import replace

    import tpux_local
    from tpux import Waiting, hookimpl

    config_section, tpu_section = tpux_local.config_section, tpux_local.tpu_section
    inspect = tpux_local.inspect

    @hookimpl
    def provision(request):
        answer = tpux_local.provision(request)
        return replace(answer, allocation=replace(answer.allocation, costs=True))

    @hookimpl
    def release(request):
        if (request.directory / "hold").exists():
            return Waiting("the API is slow", 0.1)
        return tpux_local.release(request)
"""
RUNS = """
tpu: {allocation_mode: paid}
command:
  cmd: |
    echo up
    while :; do sleep 0.1; done
  grace_period: 1s
"""


@pytest.fixture
def paid(tpux):
    tpux.plugin("tpux-paid", PAID, entries="paid = tpux_paid")
    return tpux


def running(tpux):
    job = tpux.create(RUNS)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    return job


def changes(tpux, job):
    return [event["to"] for event in tpux.events(job, "state-changed")]


def queued(tpux, job, *commands):
    """Give commands while no supervisor runs, then start one."""
    tpux("supervisor", "stop")
    with no_supervisor(tpux):
        for command in commands:
            tpux(command[0], job, *command[1:])
    tpux("supervisor", "start")


def test_a_plain_stop_does_not_cancel_a_release(paid):
    job = running(paid)
    queued(paid, job, ["stop", "--release", "--no-wait"], ["stop", "--no-wait"])
    paid.until(lambda: paid.events(job, "released"))
    assert [event["number"] for event in paid.events(job, "request-accepted")] == [1, 2]
    paid.until(lambda: not list((paid.directory(job) / "requests").glob("*.json")))


def test_a_release_follows_a_plain_stop(paid):
    job = running(paid)
    queued(paid, job, ["stop", "--no-wait"], ["stop", "--release", "--no-wait"])
    paid.until(lambda: paid.events(job, "released"))


def test_keep_cancels_a_release_that_has_not_begun(paid):
    job = running(paid)
    paid("supervisor", "stop")
    with no_supervisor(paid):
        paid("stop", job, "--release", "--no-wait")
        assert "--keep cancels the release of its machines" in paid("stop", job, "--keep", "--no-wait").stderr
    paid("supervisor", "start")
    paid("wait", job, code=103)
    assert paid.show(job)["held_until"] == "released by hand"
    assert paid.events(job, "release-started") == []


def test_keep_comes_too_late_for_a_release_that_has_begun(paid):
    job = running(paid)
    hold = paid.directory(job) / "machines/hold"
    hold.touch()
    paid("stop", job, "--release", "--no-wait")
    paid.until(lambda: paid.events(job, "release-started"))
    assert "cannot be cancelled any more" in paid("stop", job, "--keep", code=1).stderr
    hold.unlink()
    paid.until(lambda: paid.events(job, "released"))


@pytest.mark.parametrize("restart", ["resume", "rerun"])
def test_a_restart_takes_effect_after_a_promised_release(paid, restart):
    job = running(paid)
    hold = paid.directory(job) / "machines/hold"
    hold.touch()
    paid("stop", job, "--release", "--no-wait")
    paid.until_state(job, "stopped")
    assert "starts once its machines are released" in paid(restart, job).stderr
    assert paid.show(job)["state"] == "stopped"
    hold.unlink()
    paid.until(lambda: paid.output_so_far(job, attempt=2) == b"up\n")
    [released] = paid.events(job, "released")
    assert released["at"] < paid.events(job, "allocation-requested")[1]["at"]
    paid("stop", job, "--release")


def test_a_restart_that_was_requested_with_the_stop_follows_it(paid):
    job = running(paid)
    paid("supervisor", "stop")
    with no_supervisor(paid):
        paid("stop", job, "--no-wait")
        restart = paid.popen("resume", job)
        paid.until(lambda: len(list((paid.directory(job) / "requests").glob("*.json"))) == 2)
    paid("supervisor", "start")
    assert restart.wait() == 0, restart.stderr.read()
    paid.until(lambda: paid.output_so_far(job, attempt=2) == b"up\n")
    assert changes(paid, job)[3:6] == ["stopping", "stopped", "pending"]
    paid("stop", job, "--release")


def test_a_stop_replaces_a_restart_that_waits(paid):
    job = running(paid)
    hold = paid.directory(job) / "machines/hold"
    hold.touch()
    paid("stop", job, "--release", "--no-wait")
    paid.until_state(job, "stopped")
    paid("resume", job)
    paid("stop", job, "--no-wait")
    hold.unlink()
    paid.until(lambda: paid.events(job, "released"))
    paid("wait", job, code=103)
    assert len(paid.events(job, "attempt-started")) == 1
    assert [event["number"] for event in paid.events(job, "request-accepted")] == [1, 3]


@pytest.mark.parametrize("command", ["stop", "resume", "rerun"])
def test_nothing_follows_a_delete(paid, command):
    job = running(paid)
    hold = paid.directory(job) / "machines/hold"
    hold.touch()
    delete = paid.popen("delete", "-y", job)
    paid.until_state(job, "stopped")
    assert f"job {int(job)} is being deleted" in paid(command, job, code=2).stderr
    hold.unlink()
    assert delete.wait() == 0
    assert not any(paid.home.glob(f"jobs/*/{job}"))


def test_a_delete_is_not_lost_to_a_stop_before_the_supervisor_has_seen_it(paid):
    job = running(paid)
    paid("supervisor", "stop")
    with no_supervisor(paid):
        delete = paid.popen("delete", "-y", job)
        paid.until(lambda: list((paid.directory(job) / "requests").glob("*.json")))
        paid("stop", job, code=2)
    paid("supervisor", "start")
    assert delete.wait() == 0
    assert not any(paid.home.glob(f"jobs/*/{job}"))


def test_a_stop_says_which_later_command_has_changed_its_outcome(paid):
    script = 'trap "" TERM; echo up; until [ -e GO$TPUX_ATTEMPT ]; do sleep 0.1; done'.replace("GO", f"{paid.work}/go")
    job = paid.create(f"tpu: {{allocation_mode: paid}}\ncommand: {{cmd: '{script}', grace_period: 100s}}\n")

    def stopped(attempt, option, *later):
        """Give a stop, and another command while the program has not ended; return what the stop says."""
        paid.until(lambda: paid.output_so_far(job, attempt=attempt) == b"up\n")
        stop = paid.popen("stop", job, *option)
        paid.until_state(job, "stopping")
        paid(*later)
        if later[0] == "stop":  # a restart is accepted once the job has stopped
            actions = ["stop", "stop"]
            paid.until(lambda: [e["action"] for e in paid.events(job, "request-accepted")][-2:] == actions)
        (paid.work / f"go{attempt}").touch()
        return stop.communicate(timeout=60)[1].decode(), stop.returncode

    text, code = stopped(1, ["--release"], "stop", job, "--keep", "--no-wait")
    assert "job 1 stopped; the release was cancelled by a later `tpux stop --keep`" in text
    assert "release them now: tpux stop 1 --release" in text
    assert code == 1
    paid("resume", job)
    text, code = stopped(2, ["--release"], "resume", job)
    assert "job 1 had stopped and its machines were released; it was started again by a later `tpux resume`" in text
    assert code == 0
    text, code = stopped(3, ["--keep"], "stop", job, "--release", "--no-wait")
    assert "its machines are released by a later `tpux stop --release`" in text
    assert code == 1
    paid("rerun", job)
    paid.until(lambda: len(paid.events(job, "attempt-started")) == 4)
    hold = paid.directory(job) / "machines/hold"
    hold.touch()
    (paid.work / "go4").touch()
    paid("wait", job)
    stop = paid.popen("stop", job, "--release")
    paid.until(lambda: paid.events(job, "request-accepted")[-1]["action"] == "stop")
    delete = paid.popen("delete", "-y", job)
    paid.until(lambda: paid.events(job, "request-accepted")[-1]["action"] == "delete")
    hold.unlink()
    assert delete.wait() == 0
    told = stop.communicate(timeout=60)[1].decode()
    assert re.search(r"job 1 (was deleted meanwhile|had already ended: succeeded; its machines are released)\n", told)
    assert stop.returncode == 0
