"""Killed between any two calls, and whatever answer is lost: one TPU in the end, and after the release none."""

from __future__ import annotations

import pytest

from tpux import Ready, Released, Waiting
from tpux_gcp import calls
from tpux_gcp.api import Api
from tpux_gcp.views import Operation

MODES = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])


class Crash(BaseException):
    """A kill -9 between two instructions."""


class Killer:
    """Kills after (or before) the n-th call of the API in a turn, as a kill -9 does: what was answered is not kept."""

    def __init__(self, monkeypatch, at: int, *, before: bool) -> None:
        self.left, self.before, self.fired = at, before, False
        real = calls.call

        def call(*args: object, **options: object) -> object:
            self.left -= 1
            if self.left == 0 and self.before:
                self.fired = True
                raise Crash
            try:
                return real(*args, **options)
            finally:
                if self.left == 0:
                    self.fired = True
                    raise Crash

        monkeypatch.setattr("tpux_gcp.api.call", call)


def _through_crashes(job, hook, end) -> None:
    for _ in range(400):
        try:
            answer = hook()
        except Crash:
            continue  # a new process begins with the memo that is on disk
        if isinstance(answer, end):
            return
        job.pause(answer)
    raise AssertionError(job.whys[-3:])


@MODES
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_killed_at_any_call(drive, monkeypatch, mode, at, before):
    job = drive(mode=mode, keys=("a:ssh-ed25519 K",))
    killer = Killer(monkeypatch, at, before=before)
    _through_crashes(job, job.step, Ready)
    assert len(job.nodes()) == 1
    assert len(job.queued()) == (mode == "queued-resources")
    killer.left = min(at - 4, 3)  # and in the release, where it has not come to it yet; 3 calls is the least
    _through_crashes(job, job.let_go, Released)
    assert killer.fired
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
@pytest.mark.parametrize("at", range(1, 5))
def test_killed_and_then_given_back(drive, monkeypatch, mode, at):
    job = drive(mode=mode)
    Killer(monkeypatch, at, before=False)
    with pytest.raises(Crash):
        job.run()
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
@pytest.mark.parametrize("effect", ["lose", "drop"])
def test_an_answer_that_is_lost(drive, mode, effect):
    job = drive(mode=mode)
    getattr(job.cloud, effect)("*.create", count=1)
    job.ready()
    assert len(job.nodes()) == 1
    getattr(job.cloud, effect)("*.delete", count=1)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_creation_whose_answer_is_lost_is_given_back(drive, mode):
    job = drive(mode=mode)
    job.cloud.change(delays={"node.CREATING": 0.3})
    job.cloud.lose("*.create", count=1)
    while not any(e.method.endswith("create") for e in job.asked()):
        job.pause(job.step())
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_creation_that_does_not_show_yet_is_not_forgotten(drive, monkeypatch):
    """The API accepted it and is slow to list it: a release waits for its end before it says that nothing is left."""
    job = drive(mode="queued-resources")
    job.run(until="asked for")
    with monkeypatch.context() as hidden:
        hidden.setattr(Api, "queued", lambda *_: None)
        hidden.setattr(Api, "operation", lambda *_: Operation(done=False))
        assert "its creation has begun" in job.step().why
        assert isinstance(job.let_go(), Waiting)
    job.release()
    assert job.queued() == []


def test_the_same_request_id_is_sent_until_it_is_answered(drive):
    job = drive(mode="queued-resources")
    job.cloud.drop("queuedResources.create", count=3)
    job.ready()
    ids = {e.query["requestId"] for e in job.asked("queuedResources.create")}
    assert len(ids) == 1
    job.release()
    job.ready()
    assert len({e.query["requestId"] for e in job.asked("queuedResources.create")}) == 2
    job.release()


def test_a_stop_while_queued_is_obeyed_at_once(drive):
    job = drive(mode="queued-resources")
    job.cloud.stockout()
    job.run(until="WAITING_FOR_RESOURCES")
    began = job.at
    job.release()
    assert job.at - began < 15
    assert job.queued() == []


def test_nothing_was_asked_for_so_nothing_is_asked_for_the_release(drive):
    job = drive()
    job.release()
    assert job.asked() == []


@MODES
def test_the_api_is_away_for_a_while(drive, mode):
    job = drive(mode=mode)
    rule = job.cloud.error(503)
    pauses = [_trouble(job) for _ in range(7)]
    assert pauses[1:] == sorted(pauses[1:])
    assert pauses[-1] <= 150
    job.cloud.clear(rule)
    job.ready()
    assert len(job.nodes()) == 1
    job.release()


def _trouble(job) -> float:
    answer = job.step()
    assert isinstance(answer, Waiting)
    job.pause(answer)
    return answer.look_again_after


def test_an_api_that_hangs_costs_a_step_and_nothing_else(drive, monkeypatch):
    job = drive()
    job.step()
    rule = job.cloud.hang()
    with monkeypatch.context() as hurried:
        hurried.setattr(calls.call, "__defaults__", (calls.Patience(0.3),))
        answer = job.step()
        assert isinstance(answer, Waiting)
        assert "does not answer" in answer.why
        assert job.inspect().condition == "unknown"
    job.cloud.clear(rule)
    job.ready()
    job.release()
