"""After crashes between any two API calls and after lost responses there is one TPU, and none after the release."""

from __future__ import annotations

import pytest

from tpux import Ready, Released, Waiting
from tpux_gcp import api
from tpux_gcp.api import Api
from tpux_gcp.resource import Operation

MODES = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])


class Crash(BaseException):
    """Stands for a kill -9 between two instructions."""


class Killer:
    """Crash after (or before) the n-th API call, like kill -9: the step's answer is lost."""

    def __init__(self, monkeypatch, at: int, *, before: bool) -> None:
        self.left, self.before, self.fired = at, before, False
        real = api.invoke

        def invoke(*args: object, **options: object) -> object:
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

        monkeypatch.setattr("tpux_gcp.api.invoke", invoke)


def _through_crashes(job, hook, end) -> None:
    for _ in range(400):
        try:
            answer = hook()
        except Crash:
            continue  # a new process starts from the saved state
        if isinstance(answer, end):
            return
        job.pause(answer)
    raise AssertionError(job.messages[-3:])


@MODES
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_crash_at_any_call(drive, monkeypatch, mode, at, before, named):
    job = drive(mode=mode, keys=("a:ssh-ed25519 K",), **({"name": "crashing"} if named else {}))
    if at == 8:  # the fourth call of a release is a poll: on a slow machine, too, the deletion must still be running
        job.cloud.change(delays={"node.DELETING": 2})
    killer = Killer(monkeypatch, at, before=before)
    _through_crashes(job, job.step, Ready)
    assert len(job.nodes()) == 1
    assert len(job.queued()) == (mode == "queued-resources")
    killer.left = min(at - 4, 3)  # crash during the release if it has not happened before; it makes 3 calls at least
    _through_crashes(job, job.release_step, Released)
    assert killer.fired
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
@pytest.mark.parametrize("at", range(1, 5))
def test_release_after_a_crash(drive, monkeypatch, mode, at):
    job = drive(mode=mode)
    Killer(monkeypatch, at, before=False)
    with pytest.raises(Crash):
        job.run()
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
@pytest.mark.parametrize("effect", ["lose", "drop"])
def test_a_lost_response(drive, mode, effect):
    job = drive(mode=mode)
    getattr(job.cloud, effect)("*.create", count=1)
    job.ready()
    assert len(job.nodes()) == 1
    getattr(job.cloud, effect)("*.delete", count=1)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_creation_with_a_lost_response_is_released(drive, mode):
    job = drive(mode=mode)
    job.cloud.change(delays={"node.CREATING": 0.3})
    job.cloud.lose("*.create", count=1)
    while not any(e.method.endswith("create") for e in job.requests()):
        job.pause(job.step())
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_release_waits_for_a_creation_in_progress(drive, monkeypatch):
    """The API accepted the creation and shows it late: a release waits for the operation to end."""
    job = drive(mode="queued-resources")
    job.cloud.stockout()  # else its node appears, which is not hidden, before a slow machine has taken the next step
    job.run(until="request sent")
    with monkeypatch.context() as hidden:
        hidden.setattr(Api, "queued_resource", lambda *_: None)
        hidden.setattr(Api, "operation", lambda *_: Operation(done=False))
        assert "creation in progress" in job.step().why
        assert isinstance(job.release_step(), Waiting)
    job.release()
    assert job.queued() == []


@MODES
@pytest.mark.parametrize("operation", [Operation(done=True), None], ids=["succeeded", "forgotten"])
def test_release_looks_again_after_a_creation_that_ended(drive, monkeypatch, mode, operation):
    """The TPU appeared after the API was asked for it, or is not visible yet."""
    job = drive(mode=mode)
    job.run(until="request sent")
    with monkeypatch.context() as hidden:
        hidden.setattr(Api, "tpu", lambda *_, **__: None)
        hidden.setattr(Api, "operation", lambda *_: operation)
        job.pause(job.release_step())
        job.pause(job.release_step())
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_release_looks_for_two_minutes_after_a_creation_that_ended(drive, monkeypatch):
    job = drive()
    job.run(until="request sent")
    monkeypatch.setattr(Api, "tpu", lambda *_, **__: None)
    monkeypatch.setattr(Api, "operation", lambda *_: Operation(done=True))
    began = job.at
    job.release()
    assert 120 <= job.at - began < 150


@MODES
@pytest.mark.parametrize(("status", "evidence"), [(400, "network typo"), (404, "network typo")])
def test_nothing_is_released_after_a_creation_that_the_api_refused(drive, mode, status, evidence):
    job = drive(mode=mode)
    job.cloud.error(status, method="*.create", count=1, message="network typo")
    assert evidence in job.denied().failure.evidence
    began, calls = job.at, len(job.requests())
    job.release()
    assert (job.at, len(job.requests())) == (began, calls)


@pytest.mark.parametrize("status", [503, 400])
def test_nothing_is_looked_for_if_it_is_unknown_whether_the_zone_has_the_refused_type(drive, status):
    job = drive(zone=["us-central2-b", "us-east1-d"])
    job.cloud.error(400, method="*.create", message="bad type")
    rule = job.cloud.error(status, method="acceleratorTypes.*", message="no list")
    began = job.at
    if status == 503:
        job.run(until="no list")
        job.cloud.clear(rule)
    assert "bad type" in job.denied().failure.evidence
    job.release()
    assert job.at - began < 60


@MODES
def test_a_refused_type_is_named_also_if_the_zones_types_cannot_be_listed(drive, mode):
    job = drive(mode=mode, zone=["us-central2-b", "us-east1-d"])
    method = "nodes.create" if mode == "tpu-vm" else "queuedResources.create"
    job.cloud.fail_operation(method, code=3, message="bad type")
    job.cloud.error(400, method="acceleratorTypes.*", message="no list")
    assert "bad type" in job.denied().failure.evidence
    job.release()


def test_a_release_is_not_prolonged_by_a_clock_that_was_set_back(drive, monkeypatch):
    job = drive()
    job.run(until="request sent")
    monkeypatch.setattr(Api, "tpu", lambda *_, **__: None)
    monkeypatch.setattr(Api, "operation", lambda *_: Operation(done=True))
    job.pause(job.release_step())
    job.at -= 7200
    began = job.at
    job.release()
    assert job.at - began < 150


def test_the_request_id_is_reused_until_answered(drive):
    job = drive(mode="queued-resources")
    job.cloud.drop("queuedResources.create", count=3)
    job.ready()
    ids = {e.query["requestId"] for e in job.requests("queuedResources.create")}
    assert len(ids) == 1
    job.release()
    job.ready()
    assert len({e.query["requestId"] for e in job.requests("queuedResources.create")}) == 2
    job.release()


def test_release_while_queued_is_quick(drive):
    job = drive(mode="queued-resources")
    job.cloud.stockout()
    job.run(until="WAITING_FOR_RESOURCES")
    began = job.at
    job.release()
    assert job.at - began < 15
    assert job.queued() == []


def test_release_without_a_request_makes_no_calls(drive):
    job = drive()
    job.release()
    assert job.requests() == []


@MODES
def test_an_api_outage(drive, mode):
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
    return answer.poll_after


def test_a_hanging_api_call_times_out(drive, monkeypatch):
    job = drive()
    job.step()
    rule = job.cloud.hang()
    with monkeypatch.context() as short_timeouts:
        short_timeouts.setattr(api, "TIMEOUT", 0.3)
        answer = job.step()
        assert isinstance(answer, Waiting)
        assert "does not answer" in answer.why
        assert job.inspect().state == "unknown"
    job.cloud.clear(rule)
    job.ready()
    job.release()


# --- a creation that was not answered takes effect later --------------------------------------------


def _until_sent(job) -> dict[str, object]:
    """Take steps until the creation is sent; return the state that was saved before."""
    while True:
        before, answer = job.saved_state, job.step()
        if any(request.method.endswith("create") for request in job.requests()):
            return before
        job.pause(answer)


@MODES
def test_a_release_waits_for_a_creation_that_was_not_answered(drive, mode):
    job = drive(mode=mode)
    job.cloud.late(1)
    _until_sent(job)
    began, answer = job.at, job.release_step()
    assert isinstance(answer, Waiting)
    assert 800 < answer.ends_within <= 900
    assert "was not answered" in answer.why
    (job.cloud.wait_for if mode == "tpu-vm" else job.cloud.wait_for_queued)(
        f"train-{job.job}", "READY" if mode == "tpu-vm" else "ACTIVE"
    )
    job.release()
    assert job.at - began < 900
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_release_waits_for_a_creation_that_was_cut_off(drive, monkeypatch, mode):
    """That it is sent was saved before, so that the next process knows of it."""
    job = drive(mode=mode)
    job.cloud.late(1)
    real = api.invoke

    def invoke(*args: object, **options: object) -> object:
        try:
            return real(*args, **options)
        finally:
            if any(request.method.endswith("create") for request in job.requests()):
                raise Crash

    with monkeypatch.context() as killed:
        killed.setattr("tpux_gcp.api.invoke", invoke)
        with pytest.raises(Crash):
            job.run()
    assert isinstance(job.release_step(), Waiting), "it may still take effect"
    (job.cloud.wait_for if mode == "tpu-vm" else job.cloud.wait_for_queued)(
        f"train-{job.job}", "READY" if mode == "tpu-vm" else "ACTIVE"
    )
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@MODES
def test_a_creation_is_not_sent_while_its_intent_could_not_be_saved(drive, mode):
    """As on a full disk: the same process is called again with the state before the intent."""
    job = drive(mode=mode)
    job.step()
    before = job.saved_state
    for _ in range(3):
        job.step()
        assert job.saved_state["sent_at"]
        job.saved_state = before
    assert not any(request.method.endswith("create") for request in job.requests())
    job.ready()
    job.release()


@MODES
def test_a_creation_that_was_not_answered_and_never_takes_effect(drive, mode):
    job = drive(mode=mode)
    job.cloud.drop("*.create", count=1)
    _until_sent(job)
    began = job.at
    job.release()
    assert 800 < job.at - began < 1000


@pytest.mark.parametrize("times", [1, 3])
def test_a_node_is_requested_again_a_minute_after_a_request_that_was_not_answered(drive, times):
    job = drive()
    job.cloud.error(500, method="nodes.create", count=times)
    _until_sent(job)
    began = job.at
    job.ready()
    assert len(job.requests("nodes.create")) == times + 1
    assert len({request.query["nodeId"] for request in job.requests("nodes.create")}) == 1
    assert 60 * times <= job.at - began < 120 * times
    assert len(job.nodes()) == 1
    job.release()


def test_a_release_waits_for_the_first_of_two_requests(drive):
    """It is handled after the TPU of the second one was deleted."""
    job = drive()
    job.cloud.late(3600)
    _until_sent(job)
    began = job.at
    job.ready()
    job.run(job.release_step, until="may still take effect")
    assert job.nodes() == []
    assert 0 < job.release_step().ends_within < 900 - (job.at - began) + 40
    job.release()
    assert 800 < job.at - began < 1000


def test_a_lost_node_is_requested_again_although_an_earlier_request_may_take_effect(drive):
    """Under the same name there is one; which of both requests it is does not matter."""
    job = drive(pricing="spot", name="again")
    job.cloud.error(500, method="nodes.create", count=1)
    job.ready()
    name, began = job.saved_state["name"], job.at
    job.cloud.preempt(name)
    job.cloud.wait_for(name, "PREEMPTED")
    job.ready()
    assert (job.saved_state["name"], len(job.requests("nodes.create"))) == (name, 3)
    assert job.at - began < 200
    job.run(job.release_step, until="may still take effect")
    job.release()


def test_a_request_that_the_first_one_has_overtaken_is_adopted(drive):
    job = drive()
    job.cloud.late(0.5, count=1)
    _until_sent(job)
    job.cloud.wait_for(f"train-{job.job}", "READY")
    job.at += 60
    with pytest.MonkeyPatch.context() as patch:  # it appears after it was looked for
        patch.setattr(Api, "tpu", lambda *_, **__: None)
        job.step()
        job.step()
    job.ready()
    assert (len(job.requests("nodes.create")), len(job.nodes())) == (2, 1)
    job.release()


def test_a_late_node_is_adopted(drive):
    job = drive()
    job.cloud.late(0.5)
    _until_sent(job)
    job.cloud.wait_for(f"train-{job.job}", "READY")
    began = job.at
    job.ready()
    assert len(job.requests("nodes.create")) == 1
    assert job.at - began < 100
    job.release()


def test_a_running_creation_is_found_in_the_list_of_operations(drive, monkeypatch):
    job = drive(mode="queued-resources")
    job.cloud.change(delays={"queued-resource.CREATING": 1})
    job.cloud.lose("*.create", count=1)
    _until_sent(job)
    with monkeypatch.context() as hidden:
        hidden.setattr(Api, "queued_resource", lambda *_: None)
        answer = job.release_step()
        assert isinstance(answer, Waiting)
        assert "creation in progress" in answer.why
        assert job.saved_state["operation"]
    job.release()
    assert job.queued() == []


@MODES
def test_a_refused_connection_sent_nothing(drive, mode):
    job = drive(mode=mode)
    url, unused = job.resolved["endpoint"], "http://127.0.0.1:9"
    job.step()
    job.saved_state["endpoint"] = unused
    answer = job.step()
    assert f"nothing listens at {unused}" in answer.why
    job.saved_state["endpoint"] = url
    began = job.at
    job.release()
    assert job.at == began


def test_a_clock_that_was_set_back_prolongs_the_wait_by_15_minutes_at_most(drive):
    job = drive()
    job.cloud.drop("*.create", count=1)
    _until_sent(job)
    job.at -= 7200  # as after a restart: a running process uses a clock that is never set
    began = job.at
    job.release()
    assert job.at - began < 1000


def test_a_request_is_not_forgotten_if_it_could_not_be_saved_that_it_is_repeated(drive):
    """As on a full disk: the first request was not answered, and the repeated one is refused or never sent."""
    job = drive(mode="queued-resources")
    job.cloud.drop("*.create", count=1)
    _until_sent(job)
    unanswered = job.saved_state
    job.at += 60
    job.step()
    assert job.saved_state["repeated"]
    job.saved_state = unanswered
    answer = job.release_step()
    assert isinstance(answer, Waiting)
    assert "was not answered" in answer.why
    job.cloud.error(403, method="*.create", count=1, message="denied")
    job.run(until="denied")
    assert job.saved_state["phase"] == "deleting"
    began = job.at
    job.release()
    assert 800 < job.at - began < 1000


@MODES
def test_an_old_intent_is_saved_again_before_the_creation(drive, mode):
    """The machine was suspended between the step that saved the intent and the next one, in which the process dies."""
    job = drive(mode=mode)
    while not job.saved_state.get("sent_at"):
        job.pause(job.step())
    job.at += 3600
    job.cloud.drop("*.create", count=1)
    job.saved_state = _until_sent(job)
    answer = job.release_step()
    assert isinstance(answer, Waiting), "it may still take effect"
    assert "was not answered" in answer.why
    job.release()


@MODES
@pytest.mark.parametrize("status", [499, 524], ids=["cancelled", "timeout of a proxy"])
def test_a_release_waits_for_a_creation_whose_handling_was_cut_short(drive, mode, status):
    """The emulator handles nothing after this status; Google's API, or a proxy before it, may."""
    job = drive(mode=mode)
    job.cloud.error(status, method="*.create", count=1)
    _until_sent(job)
    assert isinstance(job.release_step(), Waiting), "it may still take effect"
    job.release()
