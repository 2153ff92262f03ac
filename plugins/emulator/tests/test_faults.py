"""The faults that can be injected, as clients see them."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from emulator_http import ask, create, node, outcome, queue, ready
from emulator_support import PARENT, QUICK

from tpux import TpuxError
from tpux_emulator.api import future
from tpux_emulator.emulator import Emulator


def _queued(cloud: Emulator, name: str) -> dict[str, object]:
    shown: dict[str, object] = ask(cloud, "GET", f"{PARENT}/queuedResources/{name}").json()["state"]
    return shown


def test_a_preempted_node_keeps_its_name_until_deleted(api_cloud: Emulator) -> None:
    ready(api_cloud, "f1")
    api_cloud.preempt("f1")
    api_cloud.wait_for("f1", "PREEMPTED")
    assert create(api_cloud, "f1").status_code == 409
    assert ask(api_cloud, "DELETE", f"{PARENT}/nodes/f1").status_code == 200
    api_cloud.wait_for("f1", "GONE")


def test_a_scheduled_termination(api_cloud: Emulator) -> None:
    ready(api_cloud, "f2")
    before = float(str(api_cloud.status()["now"]))
    api_cloud.terminate("f2", after=0.3)
    api_cloud.wait_for("f2", "TERMINATED")
    assert float(str(api_cloud.status()["now"])) - before >= 0.3


def test_a_scheduled_fault_is_dropped_with_its_node(api_cloud: Emulator) -> None:
    ready(api_cloud, "f3")
    api_cloud.preempt("f3", after=1)
    outcome(api_cloud, ask(api_cloud, "DELETE", f"{PARENT}/nodes/f3"))
    ready(api_cloud, "f3")
    time.sleep(1.2)
    assert node(api_cloud, "f3")["state"] == "READY"


@pytest.mark.parametrize("request_one", [create, queue])
def test_a_creation_that_is_not_answered_takes_effect_later(
    api_cloud: Emulator, request_one: Callable[..., httpx.Response]
) -> None:
    kind = "nodes" if request_one is create else "queuedResources"
    api_cloud.late(2)  # seconds; the next request comes sooner
    with pytest.raises(httpx.TransportError):
        request_one(api_cloud, "late1")
    assert ask(api_cloud, "GET", f"{PARENT}/{kind}/late1").status_code == 404
    wait = api_cloud.wait_for if kind == "nodes" else api_cloud.wait_for_queued
    wait("late1", "READY" if kind == "nodes" else "ACTIVE")
    assert ask(api_cloud, "DELETE", f"{PARENT}/{kind}/late1", params={"force": True}
               if kind != "nodes" else {}).status_code == 200  # fmt: skip
    wait("late1", "GONE")
    if kind != "nodes":
        api_cloud.wait_for("late1-n", "GONE")


def test_a_stockout_for_a_number_of_requests(api_cloud: Emulator) -> None:
    zone = "projects/emulated/locations/us-west4-a"
    api_cloud.stockout("us-west4-a", count=2)
    for name in ("f4", "f5"):
        done = outcome(api_cloud, create(api_cloud, name, "v5litepod-8", parent=zone))
        assert done["error"]["code"] == 8
        assert 'no more capacity in the zone "us-west4-a"' in done["error"]["message"]
        assert ask(api_cloud, "GET", f"{zone}/nodes/{name}").status_code == 404
    assert "response" in outcome(api_cloud, create(api_cloud, "f6", "v5litepod-8", parent=zone))


def test_a_queued_resource_waits_for_a_stockout_to_end(api_cloud: Emulator) -> None:
    rule = api_cloud.rule("stockout", name="fq1")
    queue(api_cloud, "fq1")
    api_cloud.wait_for_queued("fq1", "WAITING_FOR_RESOURCES")
    time.sleep(0.5)
    assert _queued(api_cloud, "fq1")["state"] == "WAITING_FOR_RESOURCES"
    api_cloud.clear(rule)
    api_cloud.wait_for_queued("fq1", "ACTIVE")


def test_a_queued_resource_fails_at_valid_until(api_cloud: Emulator) -> None:
    rule = api_cloud.rule("stockout", name="fq2")
    queue(api_cloud, "fq2", queueingPolicy={"validUntilDuration": "1s"})
    api_cloud.wait_for_queued("fq2", "FAILED")
    assert "valid until" in str(_queued(api_cloud, "fq2")["failedData"])
    api_cloud.clear(rule)
    assert outcome(api_cloud, ask(api_cloud, "DELETE", f"{PARENT}/queuedResources/fq2"))["response"]


@pytest.mark.parametrize("end", ["suspend", "fail"])
def test_quota_counts_queued_resources_that_ended(api_cloud: Emulator, end: str) -> None:
    zone, name = "projects/emulated/locations/us-west1-c", f"fq-{end}"
    queue(api_cloud, name, "v5litepod-8", parent=zone)
    api_cloud.wait_for_queued(name, "ACTIVE")
    getattr(api_cloud, end)(name)
    api_cloud.wait_for_queued(name, "SUSPENDED" if end == "suspend" else "FAILED")
    api_cloud.wait_for(f"{name}-n", "GONE")
    rule = api_cloud.quota("us-west1", limit=8)
    assert create(api_cloud, "f-after", "v5litepod-4", parent=zone).status_code == 429
    outcome(api_cloud, ask(api_cloud, "DELETE", f"{zone}/queuedResources/{name}"))
    assert create(api_cloud, "f-after", "v5litepod-4", parent=zone).status_code == 200
    api_cloud.clear(rule)
    outcome(api_cloud, ask(api_cloud, "DELETE", f"{zone}/nodes/f-after"))


def test_a_quota_of_one_pricing(api_cloud: Emulator) -> None:
    zone = "projects/emulated/locations/us-west1-c"
    rule = api_cloud.quota("us-west1", pricing="spot")
    spot = {"schedulingConfig": {"spot": True}}
    refused = create(api_cloud, "f-spot", "v5litepod-4", parent=zone, **spot)
    assert "TPUV5LITEPODPreemptiblePerProjectPerRegionForTPUAPI" in refused.text
    assert create(api_cloud, "f-ondemand", "v5litepod-4", parent=zone).status_code == 200
    api_cloud.clear(rule)
    outcome(api_cloud, ask(api_cloud, "DELETE", f"{zone}/nodes/f-ondemand"))


@pytest.mark.parametrize(
    ("form", "status", "message"),
    [("resources", 429, "does not have enough resources available"), ("pool", 503, "ZONE_RESOURCE_POOL_EXHAUSTED")],
)
def test_stockouts_in_the_wordings_of_compute_engine(api_cloud: Emulator, form: str, status: int, message: str) -> None:
    api_cloud.stockout("us-west1-c", count=1, form=form)
    refused = create(api_cloud, "f-none", "v5litepod-4", parent="projects/emulated/locations/us-west1-c")
    assert (refused.status_code, message in refused.text) == (status, True)


def test_an_exhausted_quota_lets_a_queued_resource_fail(api_cloud: Emulator) -> None:
    rule = api_cloud.quota("us-west1-c", limit=4, form="exhausted")
    queue(api_cloud, "fq-quota", "v5litepod-8", parent="projects/emulated/locations/us-west1-c", tier="guaranteed")
    api_cloud.wait_for_queued("fq-quota", "FAILED")
    answer = ask(api_cloud, "GET", "projects/emulated/locations/us-west1-c/queuedResources/fq-quota")
    assert "Quota 'TPUV5LITEPODPerProjectPerRegionForTPUAPI' exhausted. Limit 4 in region us-west1" in answer.text
    api_cloud.clear(rule)
    outcome(api_cloud, ask(api_cloud, "DELETE", "projects/emulated/locations/us-west1-c/queuedResources/fq-quota"))


def test_a_zone_that_lists_cannot_reach(api_cloud: Emulator) -> None:
    ready(api_cloud, "f31")
    zone = PARENT.rpartition("/")[2]
    anywhere = PARENT.replace(zone, "-")
    rule = api_cloud.unreachable(zone)
    for parent in (PARENT, anywhere):
        answer = ask(api_cloud, "GET", f"{parent}/nodes").json()
        assert [place.rpartition("/")[2] for place in answer["unreachable"]] == [zone]
        assert "f31" not in [each["name"].rpartition("/")[2] for each in answer.get("nodes", [])]
    assert node(api_cloud, "f31")["state"] == "READY"
    api_cloud.clear(rule)
    assert "unreachable" not in ask(api_cloud, "GET", f"{anywhere}/nodes").json()


def test_answers_of_a_later_version_are_the_same_under_the_same_seed() -> None:
    answer = {"name": "n", "state": "READY", "labels": {"a": "b"}, "networkEndpoints": [{"ipAddress": "1"}]}
    several = [future.change(answer, 1, number) for number in range(50)]
    assert several == [future.change(answer, 1, number) for number in range(50)]
    assert any("novelty" in str(each) for each in several)
    assert {each["state"] for each in several} == {"READY"}, "only states that end are replaced"
    assert all(each["labels"] == {"a": "b"} for each in several)


def test_a_forbidden_zone_refuses_every_request(api_cloud: Emulator) -> None:
    rule = api_cloud.forbid("us-west1-c")
    for answer in (
        ask(api_cloud, "GET", "projects/emulated/locations/us-west1-c/nodes/x"),
        create(api_cloud, "x", "v5litepod-4", parent="projects/emulated/locations/us-west1-c"),
    ):
        assert answer.status_code == 403
        assert "Location us-west1-c is not found or access is unauthorized" in answer.text
    api_cloud.clear(rule)


def test_quota_counts_nodes_that_are_not_deleted(api_cloud: Emulator) -> None:
    zone = "projects/emulated/locations/us-west1-c"
    rule = api_cloud.quota("us-west1-c", generation="v5litepod", limit=8)
    outcome(api_cloud, create(api_cloud, "f7", "v5litepod-8", parent=zone))
    api_cloud.preempt("f7")
    refused = create(api_cloud, "f8", "v5litepod-4", parent=zone)
    assert refused.status_code == 429
    assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert "TPUV5LITEPODPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 8 in region us-west1." in refused.text
    outcome(api_cloud, ask(api_cloud, "DELETE", f"{zone}/nodes/f7"))
    assert create(api_cloud, "f8", "v5litepod-4", parent=zone).status_code == 200
    api_cloud.clear(rule)


@pytest.mark.parametrize(
    ("status", "name"), [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (500, "INTERNAL"), (503, "UNAVAILABLE")]
)
def test_errors_have_googles_form(api_cloud: Emulator, status: int, name: str) -> None:
    api_cloud.rule("error", status=status, name="f9", count=1)
    answer = ask(api_cloud, "GET", f"{PARENT}/nodes/f9")
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["status"]) == (
        status,
        status,
        name,
    )


def test_throttling_names_the_method(api_cloud: Emulator) -> None:
    api_cloud.rule("error", status=429, method="nodes.create", name="nodes", count=1)
    answer = create(api_cloud, "f10")
    assert answer.status_code == 429
    assert "'Maximum number of CreateNode requests per minute" in answer.text


def test_a_dropped_request_has_no_effect_and_a_lost_answer_does(api_cloud: Emulator) -> None:
    for effect, there in (("drop", 404), ("lose", 200)):
        api_cloud.rule(effect, method="nodes.create", count=1)
        with pytest.raises(httpx.TransportError):
            create(api_cloud, f"f11-{effect}")
        assert ask(api_cloud, "GET", f"{PARENT}/nodes/f11-{effect}").status_code == there


def test_a_hanging_request_and_a_slow_answer(api_cloud: Emulator) -> None:
    api_cloud.rule("hang", name="f12", count=1)
    timeout = httpx.Timeout(30, read=0.5)
    with httpx.Client(trust_env=False, timeout=timeout) as http, pytest.raises(httpx.ReadTimeout):
        http.get(f"{api_cloud.url}/v2/{PARENT}/nodes/f12")
    api_cloud.rule("slow", name="f12", seconds=0.3, count=1)
    before = time.monotonic()
    assert ask(api_cloud, "GET", f"{PARENT}/nodes/f12").status_code == 404
    assert time.monotonic() - before >= 0.3


def test_an_operation_that_fails(api_cloud: Emulator) -> None:
    api_cloud.rule("fail", method="nodes.create", name="f13", code=13, count=1)
    assert outcome(api_cloud, create(api_cloud, "f13"))["error"]["code"] == 13
    ready(api_cloud, "f13")
    api_cloud.rule("fail", method="nodes.stop", name="f13", code=10, message="no", count=1)
    assert outcome(api_cloud, ask(api_cloud, "POST", f"{PARENT}/nodes/f13:stop", json={}))["error"] == {
        "code": 10,
        "message": "no",
    }


def test_a_faked_state(api_cloud: Emulator) -> None:
    ready(api_cloud, "f14")
    api_cloud.preempt("f14")
    api_cloud.wait_for("f14", "PREEMPTED")
    api_cloud.fake_state("f14", "READY")
    assert node(api_cloud, "f14")["state"] == "READY"
    api_cloud.fake_state("f14", "READY", lasting=0.2)
    deadline = time.monotonic() + 60
    while node(api_cloud, "f14")["state"] == "READY" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert node(api_cloud, "f14")["state"] == "PREEMPTED"


def test_a_node_frozen_in_deleting(api_cloud: Emulator) -> None:
    ready(api_cloud, "f15")
    api_cloud.freeze("f15")
    ask(api_cloud, "DELETE", f"{PARENT}/nodes/f15")
    time.sleep(0.5)
    assert node(api_cloud, "f15")["state"] == "DELETING"
    assert ask(api_cloud, "DELETE", f"{PARENT}/nodes/f15").status_code == 409
    api_cloud.unfreeze("f15")
    api_cloud.wait_for("f15", "GONE")


def test_health(api_cloud: Emulator) -> None:
    ready(api_cloud, "f16")
    api_cloud.inject("health", node="f16", health="UNHEALTHY_MAINTENANCE")
    assert node(api_cloud, "f16")["health"] == "UNHEALTHY_MAINTENANCE"


def test_a_queued_resource_suspended_or_failed(api_cloud: Emulator) -> None:
    for name in ("fq3", "fq4"):
        queue(api_cloud, name, nodes=2)
        api_cloud.wait_for_queued(name, "ACTIVE")
    api_cloud.delay(queued_resource_SUSPENDING=5)
    api_cloud.suspend("fq3")
    api_cloud.wait_for_queued("fq3", "SUSPENDING")
    refused = ask(api_cloud, "DELETE", f"{PARENT}/queuedResources/fq3", params={"force": "true"})
    assert (refused.status_code, refused.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    api_cloud.wait_for_queued("fq3", "SUSPENDED")
    assert _queued(api_cloud, "fq3") == {"state": "SUSPENDED", "stateInitiator": "SERVICE", "suspendedData": {}}
    assert ask(api_cloud, "GET", f"{PARENT}/nodes/fq3-n-1").status_code == 404
    api_cloud.fail("fq4", code=9, message="Insufficient reserved capacity")
    assert _queued(api_cloud, "fq4")["failedData"] == {
        "error": {"code": 9, "message": "Insufficient reserved capacity"}
    }
    api_cloud.change(delays={"queued-resource.SUSPENDING": QUICK["queued-resource.SUSPENDING"]})


def test_one_preempted_node_suspends_the_whole_multislice(api_cloud: Emulator) -> None:
    queue(api_cloud, "fq5", nodes=3)
    api_cloud.wait_for_queued("fq5", "ACTIVE")
    api_cloud.preempt("fq5-n-1")
    api_cloud.wait_for_queued("fq5", "SUSPENDED")
    for slice_number in range(3):
        assert ask(api_cloud, "GET", f"{PARENT}/nodes/fq5-n-{slice_number}").status_code == 404


def test_a_delay_of_a_state(api_cloud: Emulator) -> None:
    api_cloud.delay(node_CREATING=60)
    create(api_cloud, "f17")
    time.sleep(0.4)
    assert node(api_cloud, "f17")["state"] == "CREATING"
    assert "networkEndpoints" not in node(api_cloud, "f17")
    api_cloud.delay(node_CREATING=QUICK["node.CREATING"])


@pytest.mark.system
def test_random_preemptions_are_the_same_under_the_same_seed(make: Callable[..., Emulator]) -> None:
    def preemption_times(seed: int) -> list[float]:
        cloud = make(preemptions_per_hour=1.0, seed=seed)
        for name in ("r1", "r2", "r3"):
            ready(cloud, name, schedulingConfig={"spot": True})
        ready(cloud, "ondemand")
        planned = sorted((fault["node"], fault["at"]) for fault in cloud.status()["scheduledFaults"])  # type: ignore[union-attr,index,call-overload]
        assert len(planned) == 3
        return [at - cloud.status()["now"] for _, at in planned]  # type: ignore[operator]

    first = preemption_times(7)
    assert preemption_times(7) == pytest.approx(first, abs=30)
    assert preemption_times(8) != pytest.approx(first, abs=30)


def test_the_clock_runs_faster(make: Callable[..., Emulator]) -> None:
    cloud = make(clock_rate=600, delays={"node.CREATING": 300, "node.DELETING": 60})
    before = float(str(cloud.status()["now"]))
    ready(cloud, "n1")
    assert float(str(cloud.status()["now"])) - before >= 300
    cloud.preempt("n1", after=120)
    cloud.wait_for("n1", "PREEMPTED")


def test_errors_name_what_exists(api_cloud: Emulator) -> None:
    ready(api_cloud, "f18")
    with pytest.raises(TpuxError, match="there is no node 'nobody'") as wrong:
        api_cloud.preempt("nobody")
    assert "there are: " in wrong.value.hint
    with pytest.raises(TpuxError, match=r"node\.CREATING: Input should be greater than or equal to 0"):
        api_cloud.delay(node_CREATING=-1)
    with pytest.raises(TpuxError, match="unknown delay"):
        api_cloud.delay(node_BORING=1)
    with pytest.raises(TpuxError, match="there is no fault 'x'"):
        api_cloud.clear("x")


def test_the_plans_of_a_node_go_with_it(api_cloud: Emulator) -> None:
    ready(api_cloud, "planned")
    ready(api_cloud, "other-planned")
    api_cloud.preempt("planned", after=3600, notice=10)
    api_cloud.preempt("other-planned", after=3600, notice=10)
    assert ask(api_cloud, "DELETE", f"{PARENT}/nodes/planned").status_code == 200
    api_cloud.wait_for("planned", "GONE")
    plans = [fault["node"].rpartition("/")[2] for fault in api_cloud.status()["scheduledFaults"]]
    assert [name for name in plans if "planned" in name] == ["other-planned"]


def test_a_login_profile_is_read_before_and_after_a_key_is_imported(api_cloud: Emulator) -> None:
    def profile() -> dict[str, object]:
        with httpx.Client(trust_env=False) as http:
            answer = http.get(f"{api_cloud.url}/v1/users/ann@example.com/loginProfile", params={"projectId": "p"})
        assert answer.status_code == 200
        return answer.json()

    assert profile()["posixAccounts"][0]["username"] == "ann_example_com"
    assert profile().get("sshPublicKeys", {}) == {}
    with httpx.Client(trust_env=False) as http:
        key = {"key": "ssh-ed25519 AAAA ann@here"}
        http.post(f"{api_cloud.url}/v1/users/ann@example.com:importSshPublicKey", json=key)
    assert [each["key"] for each in profile()["sshPublicKeys"].values()] == ["ssh-ed25519 AAAA ann@here"]
