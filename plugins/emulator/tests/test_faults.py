"""Everything that goes wrong on demand, seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from emulator_http import ask, create, node, outcome, queue, ready
from emulator_support import PARENT, QUICK

from tpux import TpuxError
from tpux_emulator.emulator import Emulator


def _queued(cloud: Emulator, name: str) -> dict[str, object]:
    shown: dict[str, object] = ask(cloud, "GET", f"{PARENT}/queuedResources/{name}").json()["state"]
    return shown


def test_a_preempted_node_stays_and_holds_its_name(paper: Emulator) -> None:
    ready(paper, "f1")
    paper.preempt("f1")
    paper.wait_for("f1", "PREEMPTED")
    assert create(paper, "f1").status_code == 409
    assert ask(paper, "DELETE", f"{PARENT}/nodes/f1").status_code == 200
    paper.wait_for("f1", "GONE")


def test_maintenance_and_a_plan_for_later(paper: Emulator) -> None:
    ready(paper, "f2")
    before = float(str(paper.status()["now"]))
    paper.terminate("f2", after=0.3)
    paper.wait_for("f2", "TERMINATED")
    assert float(str(paper.status()["now"])) - before >= 0.3


def test_a_plan_dies_with_its_node(paper: Emulator) -> None:
    ready(paper, "f3")
    paper.preempt("f3", after=1)
    outcome(paper, ask(paper, "DELETE", f"{PARENT}/nodes/f3"))
    ready(paper, "f3")
    time.sleep(1.2)
    assert node(paper, "f3")["state"] == "READY"


def test_a_stockout_for_so_many_requests(paper: Emulator) -> None:
    zone = "projects/emulated/locations/us-west4-a"
    paper.stockout("us-west4-a", count=2)
    for name in ("f4", "f5"):
        done = outcome(paper, create(paper, name, "v5litepod-8", parent=zone))
        assert done["error"]["code"] == 8
        assert 'no more capacity in the zone "us-west4-a"' in done["error"]["message"]
        assert ask(paper, "GET", f"{zone}/nodes/{name}").status_code == 404
    assert "response" in outcome(paper, create(paper, "f6", "v5litepod-8", parent=zone))


def test_a_queued_resource_waits_for_a_stockout_to_end(paper: Emulator) -> None:
    rule = paper.rule("stockout", name="fq1")
    queue(paper, "fq1")
    paper.wait_for_queued("fq1", "WAITING_FOR_RESOURCES")
    time.sleep(0.5)
    assert _queued(paper, "fq1")["state"] == "WAITING_FOR_RESOURCES"
    paper.clear(rule)
    paper.wait_for_queued("fq1", "ACTIVE")


def test_valid_until_passes(paper: Emulator) -> None:
    rule = paper.rule("stockout", name="fq2")
    queue(paper, "fq2", queueingPolicy={"validUntilDuration": "1s"})
    paper.wait_for_queued("fq2", "FAILED")
    assert "valid until" in str(_queued(paper, "fq2")["failedData"])
    paper.clear(rule)
    assert outcome(paper, ask(paper, "DELETE", f"{PARENT}/queuedResources/fq2"))["response"]


def test_quota_counts_what_is_not_deleted(paper: Emulator) -> None:
    zone = "projects/emulated/locations/us-west1-c"
    rule = paper.quota("us-west1-c", generation="v5litepod", limit=8)
    outcome(paper, create(paper, "f7", "v5litepod-8", parent=zone))
    paper.preempt("f7")
    refused = create(paper, "f8", "v5litepod-4", parent=zone)
    assert refused.status_code == 429
    assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert "has been exceeded. Limit: 8 in zone us-west1-c" in refused.text
    outcome(paper, ask(paper, "DELETE", f"{zone}/nodes/f7"))
    assert create(paper, "f8", "v5litepod-4", parent=zone).status_code == 200
    paper.clear(rule)


@pytest.mark.parametrize(
    ("status", "name"), [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (500, "INTERNAL"), (503, "UNAVAILABLE")]
)
def test_errors_have_googles_form(paper: Emulator, status: int, name: str) -> None:
    paper.rule("error", status=status, name="f9", count=1)
    answer = ask(paper, "GET", f"{PARENT}/nodes/f9")
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["status"]) == (
        status,
        status,
        name,
    )


def test_throttling_says_which_requests(paper: Emulator) -> None:
    paper.rule("error", status=429, method="nodes.create", name="nodes", count=1)
    answer = create(paper, "f10")
    assert answer.status_code == 429
    assert "'Maximum number of CreateNode requests per minute" in answer.text


def test_a_dropped_connection_did_nothing_and_a_lost_answer_did(paper: Emulator) -> None:
    for effect, there in (("drop", 404), ("lose", 200)):
        paper.rule(effect, method="nodes.create", count=1)
        with pytest.raises(httpx.TransportError):
            create(paper, f"f11-{effect}")
        assert ask(paper, "GET", f"{PARENT}/nodes/f11-{effect}").status_code == there


def test_a_hanging_request_and_a_slow_one(paper: Emulator) -> None:
    paper.rule("hang", name="f12", count=1)
    patience = httpx.Timeout(30, read=0.5)
    with httpx.Client(trust_env=False, timeout=patience) as http, pytest.raises(httpx.ReadTimeout):
        http.get(f"{paper.url}/v2/{PARENT}/nodes/f12")
    paper.rule("slow", name="f12", seconds=0.3, count=1)
    before = time.monotonic()
    assert ask(paper, "GET", f"{PARENT}/nodes/f12").status_code == 404
    assert time.monotonic() - before >= 0.3


def test_an_operation_that_fails(paper: Emulator) -> None:
    paper.rule("fail", method="nodes.create", name="f13", code=13, count=1)
    assert outcome(paper, create(paper, "f13"))["error"]["code"] == 13
    ready(paper, "f13")
    paper.rule("fail", method="nodes.stop", name="f13", code=10, message="no", count=1)
    assert outcome(paper, ask(paper, "POST", f"{PARENT}/nodes/f13:stop", json={}))["error"] == {
        "code": 10,
        "message": "no",
    }


def test_a_node_that_lies(paper: Emulator) -> None:
    ready(paper, "f14")
    paper.preempt("f14")
    paper.wait_for("f14", "PREEMPTED")
    paper.lie("f14", "READY")
    assert node(paper, "f14")["state"] == "READY"
    paper.lie("f14", "READY", lasting=0.2)
    deadline = time.monotonic() + 60
    while node(paper, "f14")["state"] == "READY" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert node(paper, "f14")["state"] == "PREEMPTED"


def test_stuck_in_deleting(paper: Emulator) -> None:
    ready(paper, "f15")
    paper.stick("f15")
    ask(paper, "DELETE", f"{PARENT}/nodes/f15")
    time.sleep(0.5)
    assert node(paper, "f15")["state"] == "DELETING"
    assert ask(paper, "DELETE", f"{PARENT}/nodes/f15").status_code == 409
    paper.unstick("f15")
    paper.wait_for("f15", "GONE")


def test_health(paper: Emulator) -> None:
    ready(paper, "f16")
    paper.order("health", node="f16", health="UNHEALTHY_MAINTENANCE")
    assert node(paper, "f16")["health"] == "UNHEALTHY_MAINTENANCE"


def test_a_queued_resource_suspended_or_failed(paper: Emulator) -> None:
    for name in ("fq3", "fq4"):
        queue(paper, name, nodes=2)
        paper.wait_for_queued(name, "ACTIVE")
    paper.delay(queued_resource_SUSPENDING=5)
    paper.suspend("fq3")
    paper.wait_for_queued("fq3", "SUSPENDING")
    refused = ask(paper, "DELETE", f"{PARENT}/queuedResources/fq3", params={"force": "true"})
    assert (refused.status_code, refused.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    paper.wait_for_queued("fq3", "SUSPENDED")
    assert _queued(paper, "fq3") == {"state": "SUSPENDED", "stateInitiator": "SERVICE", "suspendedData": {}}
    assert ask(paper, "GET", f"{PARENT}/nodes/fq3-n-1").status_code == 404
    paper.fail("fq4", code=9, message="Insufficient reserved capacity")
    assert _queued(paper, "fq4")["failedData"] == {"error": {"code": 9, "message": "Insufficient reserved capacity"}}
    paper.change(delays={"queued-resource.SUSPENDING": QUICK["queued-resource.SUSPENDING"]})


def test_one_preempted_node_suspends_all_of_a_multislice(paper: Emulator) -> None:
    queue(paper, "fq5", nodes=3)
    paper.wait_for_queued("fq5", "ACTIVE")
    paper.preempt("fq5-n-1")
    paper.wait_for_queued("fq5", "SUSPENDED")
    for slice_number in range(3):
        assert ask(paper, "GET", f"{PARENT}/nodes/fq5-n-{slice_number}").status_code == 404


def test_a_delay_in_any_state(paper: Emulator) -> None:
    paper.delay(node_CREATING=60)
    create(paper, "f17")
    time.sleep(0.4)
    assert node(paper, "f17")["state"] == "CREATING"
    assert "networkEndpoints" not in node(paper, "f17")
    paper.delay(node_CREATING=QUICK["node.CREATING"])


def test_random_preemptions_are_the_same_under_the_same_seed(make: Callable[..., Emulator]) -> None:
    def lives(seed: int) -> list[float]:
        cloud = make(preemptions_per_hour=1.0, seed=seed)
        for name in ("r1", "r2", "r3"):
            ready(cloud, name, schedulingConfig={"spot": True})
        ready(cloud, "ondemand")
        plans = sorted((plan["node"], plan["at"]) for plan in cloud.status()["plans"])  # type: ignore[union-attr,index,call-overload]
        assert len(plans) == 3
        return [at - cloud.status()["now"] for _, at in plans]  # type: ignore[operator]

    first = lives(7)
    assert lives(7) == pytest.approx(first, abs=30)
    assert lives(8) != pytest.approx(first, abs=30)


def test_the_clock_runs_faster(make: Callable[..., Emulator]) -> None:
    cloud = make(clock_rate=600, delays={"node.CREATING": 300, "node.DELETING": 60})
    before = float(str(cloud.status()["now"]))
    ready(cloud, "n1")
    assert float(str(cloud.status()["now"])) - before >= 300
    cloud.preempt("n1", after=120)
    cloud.wait_for("n1", "PREEMPTED")


def test_an_order_to_nobody_names_who_is_there(paper: Emulator) -> None:
    ready(paper, "f18")
    with pytest.raises(TpuxError, match="there is no node 'nobody'") as wrong:
        paper.preempt("nobody")
    assert "there are: " in wrong.value.hint
    with pytest.raises(TpuxError, match="below zero"):
        paper.delay(node_CREATING=-1)
    with pytest.raises(TpuxError, match="no delay is called"):
        paper.delay(node_BORING=1)
    with pytest.raises(TpuxError, match="there is no fault 'x'"):
        paper.clear("x")
