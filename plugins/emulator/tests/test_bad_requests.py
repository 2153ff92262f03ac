"""Invalid, unusual, concurrent and incomplete requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from emulator_http import ask, create, node, outcome, queue, ready
from emulator_support import PARENT

from tpux_emulator.emulator import Emulator

GOOD: dict[str, Any] = {"acceleratorType": "v4-8", "runtimeVersion": "x"}


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({**GOOD, "acceleratorTyp": "v4-8"}, "node", "Unknown name"),
        ({**GOOD, "networkConfig": {"netwrk": "x"}}, "node.networkConfig", "Unknown name"),
        ({**GOOD, "schedulingConfig": {"spot": "yes"}}, "node.schedulingConfig.spot", "Invalid value"),
        ({**GOOD, "labels": ["a"]}, "node.labels", "Invalid value"),
        ({**GOOD, "acceleratorType": "v9-8"}, "node.accelerator_type", "zonal accelerator configurations"),
        ({**GOOD, "acceleratorType": "v4-9"}, "node.accelerator_type", "zonal accelerator configurations"),
        ({**GOOD, "acceleratorType": "v6e-8"}, "node.accelerator_type", "zonal accelerator configurations"),
        (
            {"runtimeVersion": "x", "acceleratorConfig": {"type": "V4", "topology": "3x3x3"}},
            "node.accelerator_config",
            "3x3x3",
        ),
        (
            {"runtimeVersion": "x", "acceleratorConfig": {"type": "V99", "topology": "2x2x1"}},
            "node.acceleratorConfig.type",
            "V99",
        ),
        ({"acceleratorType": "v4-8"}, "node.runtime_version", "required"),
        ([], "node", "Invalid value"),
    ],
)
def test_an_error_in_a_body_names_the_field(api_cloud: Emulator, body: Any, field: str, words: str) -> None:
    answer = ask(api_cloud, "POST", f"{PARENT}/nodes", params={"nodeId": "b1"}, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["fieldViolations"][0]["field"] == field
    assert words in error["message"]
    assert ask(api_cloud, "GET", f"{PARENT}/nodes/b1").status_code == 404


@pytest.mark.parametrize(
    ("verb", "path", "query", "body", "status"),
    [
        ("POST", f"{PARENT}/nodes", {"nodeId": "Bad_Name"}, GOOD, 400),
        ("POST", f"{PARENT}/nodes", {}, GOOD, 400),
        ("POST", f"{PARENT}/nodes", {"nodeId": "x" * 64}, GOOD, 400),
        ("POST", f"{PARENT}/nodes", {"nodeId": "b2", "color": "red"}, GOOD, 400),
        ("GET", f"{PARENT}/nodes", {"pageToken": "rubbish"}, None, 400),
        ("GET", f"{PARENT}/nodes", {"pageSize": "-1"}, None, 400),
        ("GET", f"{PARENT}/nodes", {"pageSize": "many"}, None, 400),
        ("GET", f"{PARENT}/nodes", {"fields": "nodes(name"}, None, 400),
        ("PATCH", f"{PARENT}/nodes/nope", {"updateMask": "labels"}, {}, 404),
        ("POST", f"{PARENT}/nodes/nope:stop", {}, {}, 404),
        ("DELETE", f"{PARENT}/nodes/nope", {}, None, 404),
        ("GET", f"{PARENT}/queuedResources/nope", {}, None, 404),
        ("DELETE", f"{PARENT}/queuedResources/nope", {"force": "maybe"}, None, 400),
        ("GET", f"{PARENT}/operations/nope", {}, None, 404),
        ("GET", "projects/p/locations/mars-1/nodes", {}, None, 403),
        ("POST", "projects/p/locations/mars-1/nodes", {"nodeId": "b3"}, GOOD, 403),
        ("GET", f"{PARENT}/reservations", {}, None, 501),
        ("POST", f"{PARENT}/nodes/b4:simulateMaintenanceEvent", {}, {}, 501),
        ("GET", "../v2alpha1/" + f"{PARENT}/nodes", {}, None, 501),
        ("GET", "../compute/v1/projects/p/zones", {}, None, 501),
    ],
)
def test_invalid_requests_get_googles_errors(
    api_cloud: Emulator,
    verb: str,
    path: str,
    query: dict[str, str],
    body: Any,
    status: int,
) -> None:
    answer = ask(api_cloud, verb, path, params=query, **({"json": body} if body is not None else {}))
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == status


def test_a_body_that_is_not_json(api_cloud: Emulator) -> None:
    answer = ask(api_cloud, "POST", f"{PARENT}/nodes", params={"nodeId": "b5"}, content=b'{"accel')
    assert answer.status_code == 400
    assert "Invalid JSON payload" in answer.text


def test_other_spellings_of_protojson(api_cloud: Emulator) -> None:
    body = {"accelerator_config": {"type": 7, "topology": "2x2x2"}, "runtime_version": "x", "description": None}
    answer = ask(
        api_cloud, "POST", f"{PARENT}/nodes", params={"node_id": "b6", "$alt": "json;enum-encoding=int"}, json=body
    )
    assert outcome(api_cloud, answer)["response"]["acceleratorType"] == "v4-16"
    numbers = ask(api_cloud, "GET", f"{PARENT}/nodes/b6", params={"$alt": "json;enum-encoding=int"}).json()
    assert (numbers["state"], numbers["acceleratorConfig"]["type"]) == (2, 7)


def test_patch_changes_only_the_masked_fields(api_cloud: Emulator) -> None:
    ready(api_cloud, "b7", labels={"a": "b"}, metadata={"k": "v"})
    path = f"{PARENT}/nodes/b7"
    for mask in ("", "acceleratorType", "labels,state"):
        assert ask(api_cloud, "PATCH", path, params={"updateMask": mask}, json={}).status_code == 400
    query = {"updateMask": "labels,networkConfig.enableExternalIps"}
    body = {"labels": {}, "networkConfig": {"enableExternalIps": False}, "tags": ["not in the mask"]}
    outcome(api_cloud, ask(api_cloud, "PATCH", path, params=query, json=body))
    shown = node(api_cloud, "b7")
    assert "labels" not in shown
    assert "tags" not in shown
    assert shown["metadata"] == {"k": "v"}


def test_internal_addresses_only(api_cloud: Emulator) -> None:
    shown = ready(api_cloud, "b8", networkConfig={"enableExternalIps": False, "network": "n"})
    assert set(shown["networkEndpoints"][0]) == {"ipAddress", "port"}


def test_a_request_id_is_idempotent(api_cloud: Emulator) -> None:
    def twice(verb: str, path: str, query: dict[str, str], body: Any) -> list[str]:
        answers = [ask(api_cloud, verb, path, params=query, json=body) for _ in range(2)]
        return [answer.json().get("name") for answer in answers]

    spec = {"parent": PARENT, "nodeId": "bq1-n", "node": GOOD}
    query = {"queuedResourceId": "bq1", "requestId": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}
    first, again = twice("POST", f"{PARENT}/queuedResources", query, {"tpu": {"nodeSpec": [spec]}})
    assert first == again is not None
    assert queue(api_cloud, "bq1").status_code == 409
    api_cloud.wait_for_queued("bq1", "ACTIVE")
    query = {"force": "true", "requestId": "1b4e28ba-2fa1-11d2-883f-0016d3cca428"}
    first, again = twice("DELETE", f"{PARENT}/queuedResources/bq1", query, {})
    assert first == again is not None


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "tpu"),
        ({"tpu": {"nodeSpec": []}}, 400, "nodeSpec"),
        ({"tpu": {"nodeSpec": [{"parent": PARENT, "node": GOOD}]}}, 400, "node_id"),
        (
            {"tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "x", "node": GOOD}]}, "spot": {}, "guaranteed": {}},
            400,
            "tier",
        ),
        (
            {
                "tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "x", "node": GOOD}]},
                "queueingPolicy": {"validUntilDuration": "2h"},
            },
            400,
            "validUntilDuration",
        ),
        (
            {
                "tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "x", "node": GOOD}]},
                "queueingPolicy": {"validUntilTime": "soon"},
            },
            400,
            "validUntilTime",
        ),
        (
            {"tpu": {"nodeSpec": [{"parent": PARENT, "node": GOOD, "multisliceParams": {"nodeCount": 0}}]}},
            400,
            "nodeCount",
        ),
        ({"bestEffort": {}}, 400, "bestEffort"),
    ],
)
def test_an_error_in_a_queued_resource(api_cloud: Emulator, body: Any, status: int, words: str) -> None:
    answer = ask(api_cloud, "POST", f"{PARENT}/queuedResources", params={"queuedResourceId": "bq2"}, json=body)
    assert answer.status_code == status
    assert words in answer.text


def test_a_reservation_that_does_not_exist(make: Callable[..., Emulator]) -> None:
    cloud = make(reservations=["mine"])
    wrong = queue(cloud, "q1", tier="guaranteed", reservationName=f"{PARENT}/reservations/yours")
    assert (wrong.status_code, wrong.json()["error"]["message"].startswith("Reservation not found")) == (404, True)
    assert queue(cloud, "q1", tier="guaranteed", reservationName=f"{PARENT}/reservations/mine").status_code == 200
    cloud.wait_for_queued("q1", "ACTIVE")
    assert node(cloud, "q1-n")["schedulingConfig"] == {"reserved": True}


@pytest.mark.system
def test_a_thousand_nodes_in_pages(make: Callable[..., Emulator]) -> None:
    cloud = make()
    with httpx.Client(trust_env=False, timeout=30, base_url=f"{cloud.url}/v2/{PARENT}") as http:
        for number in range(1000):
            assert http.post("/nodes", params={"nodeId": f"n{number}"}, json=GOOD).status_code == 200
        names: list[str] = []
        query, pages = {"pageSize": "300"}, 0
        while True:
            answer = http.get("/nodes", params=query).json()
            names += [each["name"].rpartition("/")[2] for each in answer["nodes"]]
            pages += 1
            if pages == 1:  # a node created between two pages neither hides nor repeats another
                http.post("/nodes", params={"nodeId": "a-new-one"}, json=GOOD)
            if "nextPageToken" not in answer:
                break
            query["pageToken"] = answer["nextPageToken"]
        assert pages == 4
        assert sorted(names) == sorted(f"n{number}" for number in range(1000))
        assert len(http.get("/nodes").json()["nodes"]) == 500


def test_nodes_of_all_zones_in_one_list(api_cloud: Emulator) -> None:
    ready(api_cloud, "b9")
    shown = ask(api_cloud, "GET", "projects/emulated/locations/-/nodes").json()["nodes"]
    assert f"{PARENT}/nodes/b9" in [each["name"] for each in shown]
    assert "nodes" not in ask(api_cloud, "GET", "projects/somebody-else/locations/-/nodes").json()


@pytest.mark.system
def test_fifty_concurrent_clients(api_cloud: Emulator) -> None:
    def use(number: int) -> list[int]:
        made = create(api_cloud, f"crowd{number % 25}")
        shown = [ask(api_cloud, "GET", f"{PARENT}/nodes").status_code for _ in range(4)]
        return [made.status_code, *shown]

    with ThreadPoolExecutor(50) as crowd:
        results = list(crowd.map(use, range(50)))
    # Two clients request each name: one gets it.
    assert sorted(each[0] for each in results) == [200] * 25 + [409] * 25
    assert all(status == 200 for each in results for status in each[1:])


def test_clients_that_disconnect_in_the_middle(api_cloud: Emulator) -> None:
    port = int(api_cloud.url.rpartition(":")[2])
    body = json.dumps(GOOD).encode()
    head = f"POST /v2/{PARENT}/nodes?nodeId=half HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    for piece in (
        b"PO",
        head.encode()[:40],
        head.encode(),
        head.encode() + body[:5],
        b"\x16\x03\x01 not http\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(piece)
    assert ask(api_cloud, "GET", f"{PARENT}/nodes/half").status_code == 404
    with socket.create_connection(("127.0.0.1", port)) as whole:
        whole.sendall(head.encode() + body)  # disconnects before the answer
    api_cloud.wait_for("half", "READY")


def test_requests_of_web_pages_are_rejected(api_cloud: Emulator) -> None:
    assert (
        httpx.get(
            f"{api_cloud.url}/v2/{PARENT}/nodes", headers={"Origin": "https://evil.example"}, trust_env=False
        ).status_code
        == 403
    )
    assert (
        httpx.get(f"{api_cloud.url}/v2/{PARENT}/nodes", headers={"Host": "evil.example"}, trust_env=False).status_code
        == 400
    )
