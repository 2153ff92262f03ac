"""Lists of zones and accelerators: who is asked next, how long, and what the user is told."""

from __future__ import annotations

import time

import pytest

from tpux import Waiting

ZONES = ["us-east1-d", "us-east5-b"]


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_stockout_leads_to_the_next_combination(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=[*ZONES, "us-east5-a"], zone_patience=60)
    job.cloud.stockout("us-east1-d")
    job.cloud.stockout("us-east5-b")
    allocation = job.ready().allocation
    assert allocation.zone == "us-east5-a"
    assert any("tried: v6e-8 in us-east1-d" in why and "v6e-8 in us-east5-b" in why for why in job.whys)
    assert job.nodes() + job.queued() == ["us-east5-a/" + job.request.name] * (1 if mode == "tpu-vm" else 2)
    _each_was_gone_before_the_next(job)
    job.release()


def _each_was_gone_before_the_next(job) -> None:
    """Between two creations lies a word of the API that there is nothing at the first."""
    last = None
    for exchange in job.asked():
        if exchange.method.endswith(".create"):
            assert last is None or last == 404, exchange
        if exchange.method in {"nodes.get", "queuedResources.get"}:
            last = exchange.status


def test_accelerators_are_tried_in_their_order(drive):
    job = drive(accelerator=["v6e-16", "v6e-8"], zone=ZONES)
    job.cloud.rule("stockout", count=3)
    assert job.ready().allocation.zone == "us-east5-b"
    asked = [(e.path.split("/")[5], e.body["acceleratorType"]) for e in job.asked("nodes.create")]
    assert asked == [(zone, kind) for kind in ("v6e-16", "v6e-8") for zone in ZONES]
    job.release()


def test_all_combinations_are_tried_again_with_growing_pauses(drive):
    job = drive(accelerator="v6e-8", zone=ZONES)
    rule = job.cloud.stockout()
    pauses = []
    for _ in range(200):
        answer = job.step()
        assert isinstance(answer, Waiting), answer
        if "asking again" in answer.why:
            pauses.append(answer.look_again_after)
        job.pause(answer)
        if len(pauses) == 6:
            break
    assert pauses == [30, 60, 120, 240, 300, 300]
    job.cloud.clear(rule)
    job.ready()
    job.release()


def test_a_queued_request_has_zone_patience_before_the_next_zone(drive):
    job = drive(mode="queued-resources", accelerator="v6e-8", zone=ZONES, zone_patience="10m")
    job.cloud.stockout("us-east1-d")
    began = job.at
    job.run(until="not served in 600 s")
    assert 600 <= job.at - began < 640
    assert job.ready().allocation.zone == "us-east5-b"
    assert job.queued() == [f"us-east5-b/{job.request.name}"]
    job.release()


def test_an_hour_in_the_queue_costs_few_calls(drive):
    job = drive(mode="queued-resources")
    job.cloud.stockout()
    began = job.at
    while job.at - began < 3600:
        answer = job.step()
        assert isinstance(answer, Waiting)
        job.pause(answer)
    calls = len(job.asked())
    assert calls <= 3600 / 15, calls
    assert calls <= 150, calls
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_an_hour_of_stockouts_costs_few_calls(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.stockout()
    began = job.at
    while job.at - began < 3600:
        job.pause(job.step())
    assert len(job.asked()) <= 3600 / 15
    job.release()


def test_a_fresh_node_is_seen_soon(drive):
    job = drive()
    job.cloud.change(delays={"node.CREATING": 30})
    pauses = []
    for _ in range(14):
        answer = job.step()
        assert isinstance(answer, Waiting)
        job.pause(answer)
        pauses.append(answer.look_again_after)
    after = pauses[3:]
    assert after[0] == 2
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


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        ("Quota limit 'TPUV6EPerProject' has been exceeded. Limit: 0 in zone us-east1-d.", 8, "quota"),
        ("Reservation not found: r", 5, "config"),
        ("The caller does not have permission", 7, "auth"),
    ],
)
@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_what_another_zone_cannot_mend_ends_the_search(drive, mode, message, code, kind):
    job = drive(mode=mode, accelerator="v6e-8", zone=ZONES)
    job.cloud.fail_operation(
        "nodes.create" if mode == "tpu-vm" else "queuedResources.create", code=code, message=message
    )
    failure = job.denied().failure
    assert (failure.kind, failure.evidence) == (kind, message)
    assert failure.hint
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_request_that_was_not_served_in_time_is_made_again(drive):
    job = drive(mode="queued-resources", valid_until="1s")
    rule = job.cloud.stockout()
    job.run(until="asked for")
    time.sleep(1.2)
    job.run(until="expired")
    job.cloud.clear(rule)
    job.ready()
    job.release()


def test_a_node_that_is_stuck_in_creating_is_given_up(drive):
    job = drive(accelerator="v6e-8", zone=ZONES)
    job.cloud.change(delays={"node.CREATING": 3600})
    job.run(until="asked for")
    job.cloud.stick(job.request.name)
    job.cloud.change(delays={"node.CREATING": 0.05})
    began = job.at
    job.run(until="stuck: node")
    assert 1800 <= job.at - began < 1900
    job.cloud.unstick(job.request.name)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_node_that_is_stuck_in_deleting_is_waited_for(drive, mode):
    job = drive(mode=mode)
    job.ready()
    job.cloud.stick(job.request.name)
    for _ in range(60):
        answer = job.let_go()
        assert isinstance(answer, Waiting), answer
        job.memo = dict(answer.memo)
        job.pause(answer)
    assert "ten minutes" in answer.why
    job.cloud.unstick(job.request.name)
    job.release()
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_suspending_queued_resource_is_deleted_only_once_it_is_suspended(drive):
    job = drive(mode="queued-resources", pricing="spot")
    job.ready()
    job.cloud.change(delays={"queued-resource.SUSPENDING": 0.5})
    job.cloud.suspend(job.request.name)
    assert job.inspect().condition == "preempted"
    job.release()
    assert all(e.status == 200 for e in job.asked("queuedResources.delete"))
    assert (job.nodes(), job.queued()) == ([], [])


def test_a_request_that_fails_is_deleted_and_made_again(drive):
    job = drive(mode="queued-resources")
    rule = job.cloud.stockout()
    job.run(until="WAITING_FOR_RESOURCES")
    job.cloud.fail(job.request.name, code=13)
    job.cloud.clear(rule)
    job.ready()
    assert len(job.asked("queuedResources.create")) == 2
    job.release()


def test_a_throttled_project_is_left_alone_for_a_while(drive):
    from tpux_gcp import calls

    job = drive()
    job.cloud.throttle("nodes.create", count=1)
    answer = job.run(until="per minute")
    assert answer.look_again_after >= 60
    before = len(job.asked())
    other = drive()
    for _ in range(4):  # in this process nobody asks the project anything now
        answer = other.step()
        other.pause(answer)
    assert len(job.asked()) == before
    assert answer.look_again_after >= 60
    calls._throttled.clear()
    job.ready()
    other.ready()
    job.release()
    other.release()
