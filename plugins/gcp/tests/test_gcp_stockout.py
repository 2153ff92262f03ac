"""Lists of zones and accelerators: the order of candidates, timeouts, backoff and messages."""

from __future__ import annotations

import time

import pytest

from tpux import Released, Waiting

ZONES = ["us-east1-d", "us-east5-b"]


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_stockout_leads_to_the_next_candidate(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=[*ZONES, "us-east5-a"], zone_patience=60)
    job.cloud.stockout("us-east1-d")
    job.cloud.stockout("us-east5-b")
    allocation = job.ready().allocation
    assert allocation.zone == "us-east5-a"
    assert any("tried: v6e-8 in us-east1-d" in why and "v6e-8 in us-east5-b" in why for why in job.messages)
    assert job.nodes() + job.queued() == ["us-east5-a/" + job.request.name] * (1 if mode == "tpu-vm" else 2)
    _each_was_gone_before_the_next(job)
    job.release()


def _each_was_gone_before_the_next(job) -> None:
    """Check that the API confirmed each deletion (404) before the next creation."""
    last = None
    for exchange in job.requests():
        if exchange.method.endswith(".create"):
            assert last is None or last == 404, exchange
        if exchange.method in {"nodes.get", "queuedResources.get"}:
            last = exchange.status


def test_candidates_are_tried_in_order(drive):
    job = drive(accelerator=["v6e-16", "v6e-8"], zone=ZONES)
    job.cloud.rule("stockout", count=3)
    assert job.ready().allocation.zone == "us-east5-b"
    asked = [(e.path.split("/")[5], e.body["acceleratorType"]) for e in job.requests("nodes.create")]
    assert asked == [(zone, kind) for kind in ("v6e-16", "v6e-8") for zone in ZONES]
    job.release()


def test_all_candidates_are_retried_with_backoff(drive):
    job = drive(accelerator="v6e-8", zone=ZONES)
    rule = job.cloud.stockout()
    pauses = []
    for _ in range(200):
        answer = job.step()
        assert isinstance(answer, Waiting), answer
        if " again in " in answer.why:
            pauses.append(answer.poll_after)
        job.pause(answer)
        if len(pauses) == 6:
            break
    assert pauses == [30, 60, 120, 240, 300, 300]
    job.cloud.clear(rule)
    job.ready()
    job.release()


def test_zone_patience_of_a_queued_request(drive):
    job = drive(mode="queued-resources", accelerator="v6e-8", zone=ZONES, zone_patience="10m")
    job.cloud.stockout("us-east1-d")
    began = job.at
    job.run(until="no capacity within 600 s")
    assert 600 <= job.at - began < 640
    assert job.ready().allocation.zone == "us-east5-b"
    assert job.queued() == [f"us-east5-b/{job.request.name}"]
    job.release()


def test_few_calls_for_an_hour_in_the_queue(drive):
    job = drive(mode="queued-resources")
    job.cloud.stockout()
    began = job.at
    while job.at - began < 3600:
        answer = job.step()
        assert isinstance(answer, Waiting)
        job.pause(answer)
    calls = len(job.requests())
    assert calls <= 3600 / 15, calls
    assert calls <= 150, calls
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_few_calls_for_an_hour_of_stockouts(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.stockout()
    began = job.at
    while job.at - began < 3600:
        job.pause(job.step())
    assert len(job.requests()) <= 3600 / 15
    job.release()


def test_a_new_node_is_polled_often_at_first(drive):
    job = drive()
    job.cloud.change(delays={"node.CREATING": 30})
    pauses = []
    for _ in range(14):
        answer = job.step()
        assert isinstance(answer, Waiting)
        job.pause(answer)
        pauses.append(answer.poll_after)
    after = pauses[3:]
    assert after[0] == 1
    assert after == sorted(after)
    assert after[-1] <= 15
    job.release()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('There is no more capacity in the zone "us-east1-d"', 8),
        ("Insufficient reserved capacity", 9),
        ("an internal error has occurred", 13),
    ],
)
def test_an_operation_that_ends_in_a_stockout(drive, message, code):
    job = drive(accelerator="v6e-8", zone=ZONES)
    job.cloud.fail_operation(code=code, message=message)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


BOTH = pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
CREATE = {"tpu-vm": "nodes.create", "queued-resources": "queuedResources.create"}
LIMIT_0 = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east1"


@BOTH
def test_a_config_error_fails_the_request(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.fail_operation(CREATE[mode], code=5, message="Reservation not found: r")
    failure = job.denied().failure
    assert (failure.kind, failure.evidence) == ("config", "Reservation not found: r")
    assert failure.hint
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@BOTH
def test_an_operation_that_fails_with_a_limit_per_minute_is_requested_again(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES[0])
    job.cloud.fail_operation(CREATE[mode], code=8, message="Quota exceeded: VM instances per minute")
    assert job.ready().allocation.zone == ZONES[0]
    assert any("per minute" in why for why in job.messages)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@BOTH
@pytest.mark.parametrize(
    ("message", "code"),
    [
        (LIMIT_0, 8),
        ("Quota 'TPUV6EPerProject' exhausted. Limit 20800 in region us-east1", 8),
        ("The caller does not have permission", 7),
    ],
)
def test_quota_and_permission_errors_of_an_operation_concern_one_candidate(drive, mode, message, code):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.fail_operation(CREATE[mode], code=code, message=message)
    assert job.ready().allocation.zone == "us-east5-b"
    assert any(message in why for why in job.messages)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


@BOTH
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, LIMIT_0),
        (403, "Quota 'TPUS' exceeded. Limit: 0.0 in region us-east1."),
        (429, "Quota limit 'TPUV6EPerProject' has been exceeded. Limit: 8 in region us-east1"),
        (429, "The zone 'us-east1-d' does not have enough resources available to fulfill the request."),
        (503, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (403, "Location us-east1-d is not found or access is unauthorized."),
    ],
)
def test_a_rejected_creation_concerns_one_candidate(drive, mode, status, message):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.error(status, CREATE[mode], count=1, message=message)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_a_zone_that_the_project_may_not_read_is_skipped(drive):
    job = drive(accelerator="v6e-8", zone=ZONES)
    job.cloud.forbid("us-east1-d")
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


@BOTH
@pytest.mark.parametrize("first", ["quota", "forbid"])
def test_all_candidates_refused_fail_the_request(drive, mode, first):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    getattr(job.cloud, first)("us-east1-d")
    job.cloud.quota("us-east5-b") if first == "quota" else job.cloud.forbid("us-east5-b")
    failure = job.denied().failure
    assert failure.kind == {"quota": "quota", "forbid": "auth"}[first]
    own = {"quota": "the quota is 0 for v6e-8", "forbid": "access is denied to v6e-8"}[first]
    assert failure.evidence.startswith(own), "Google's text comes after a sentence of our own"
    assert all(f"v6e-8 in {zone}: " in failure.evidence for zone in ZONES)
    assert failure.hint
    assert isinstance(job.release_step(), Released)  # although the zone does not answer: nothing was created


@BOTH
def test_a_quota_in_use_is_waited_for(drive, mode):
    holder = drive(accelerator="v6e-8", zone="us-east1-d")
    holder.ready()
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.quota("us-east1-d", limit=8)
    job.cloud.quota("us-east5-b", limit=0)
    waiting = job.run(until="requesting v6e-8 in us-east1-d again in 30 s")
    assert isinstance(waiting, Waiting)
    assert "quota used up (Quota limit" in waiting.why
    assert "Limit: 8" in waiting.why
    holder.release()
    assert job.ready().allocation.zone == "us-east1-d"
    job.release()


def test_a_preempted_spot_job_waits_for_the_quota_that_others_use(drive):
    job = drive(mode="queued-resources", accelerator="v6e-8", zone="us-east1-d", pricing="spot")
    job.cloud.quota("us-east1-d", limit=8)
    job.ready()
    job.cloud.preempt(job.request.name)
    job.cloud.wait_for_queued(job.request.name, "SUSPENDED")
    job.release()
    other = drive(accelerator="v6e-8", zone="us-east1-d")
    other.ready()
    job.run(until="quota used up")
    other.release()
    job.ready()
    job.release()


@pytest.mark.parametrize("form", ["zone", "resources", "pool"])
@BOTH
def test_every_wording_of_a_stockout(drive, mode, form):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES, zone_patience=60)
    job.cloud.stockout("us-east1-d", form=form)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_a_queued_resource_that_waits_for_quota_fails_or_is_abandoned(drive):
    job = drive(mode="queued-resources", accelerator="v6e-8", zone=ZONES)
    job.cloud.quota("us-east1-d", form="exhausted")
    assert job.ready().allocation.zone == "us-east5-b"
    assert any("exhausted" in why for why in job.messages)
    job.release()


def test_an_expired_request_is_repeated(drive):
    job = drive(mode="queued-resources", valid_until="1s")
    rule = job.cloud.stockout()
    job.run(until="request sent")
    time.sleep(1.2)
    job.run(until="expired")
    job.cloud.clear(rule)
    job.ready()
    job.release()


def test_a_node_stuck_in_creating_is_abandoned(drive):
    job = drive(accelerator="v6e-8", zone=ZONES)
    job.cloud.change(delays={"node.CREATING": 3600})  # not READY before it is frozen, even on a slow machine
    job.run(until="request sent")
    job.cloud.freeze(job.request.name)
    job.cloud.change(delays={"node.CREATING": 0.05})
    began = job.at
    job.run(until="stuck: node")
    assert 1800 <= job.at - began < 1900
    job.cloud.unfreeze(job.request.name)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_release_waits_for_a_node_stuck_in_deleting(drive, mode):
    job = drive(mode=mode)
    job.ready()
    job.cloud.freeze(job.request.name)
    for _ in range(60):
        answer = job.release_step()
        assert isinstance(answer, Waiting), answer
        job.saved_state = dict(answer.saved_state)
        job.pause(answer)
    assert "ten minutes" in answer.why
    job.cloud.unfreeze(job.request.name)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_suspending_queued_resource_is_deleted_once_suspended(drive):
    job = drive(mode="queued-resources", pricing="spot")
    job.ready()
    job.cloud.change(delays={"queued-resource.SUSPENDING": 0.5})
    job.cloud.suspend(job.request.name)
    assert job.inspect().state == "preempted"
    job.release()
    assert all(e.status == 200 for e in job.requests("queuedResources.delete"))
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_failed_queued_resource_is_deleted_and_recreated(drive):
    job = drive(mode="queued-resources")
    rule = job.cloud.stockout()
    job.run(until="WAITING_FOR_RESOURCES")
    job.cloud.fail(job.request.name, code=13)
    job.cloud.clear(rule)
    job.ready()
    assert len(job.requests("queuedResources.create")) == 2
    job.release()


def test_no_calls_for_a_minute_after_throttling(drive):
    from tpux_gcp import api

    job = drive()
    job.cloud.throttle("nodes.create", count=1)
    answer = job.run(until="per minute")
    assert answer.poll_after >= 60
    before = len(job.requests())
    other = drive()
    for _ in range(4):  # this process makes no calls for the project now
        answer = other.step()
        other.pause(answer)
    assert len(job.requests()) == before
    assert answer.poll_after >= 60
    api._throttled_until.clear()
    job.ready()
    other.ready()
    job.release()
    other.release()
