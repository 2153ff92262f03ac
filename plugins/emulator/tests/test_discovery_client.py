"""Tests of the emulator with google-api-python-client and its discovery document."""

from __future__ import annotations

import time
from typing import Any

import pytest
from emulator_schemas import document
from emulator_support import PARENT
from googleapiclient import discovery
from googleapiclient.errors import HttpError
from googleapiclient.http import HttpRequest
from httplib2 import Http

from tpux_emulator.emulator import Emulator


@pytest.fixture
def locations(api_cloud: Emulator) -> Any:
    service = discovery.build_from_document(
        document(), http=Http(timeout=30), client_options={"api_endpoint": api_cloud.url}
    )
    return service.projects().locations()


def _done(locations: Any, request: HttpRequest) -> dict[str, Any]:
    operation = request.execute()
    while not operation.get("done"):
        time.sleep(0.05)
        operation = locations.operations().get(name=operation["name"]).execute()
    assert "error" not in operation, operation
    return operation["response"]  # type: ignore[no-any-return]


DISK = {"sourceDisk": "projects/emulated/zones/us-central2-b/disks/d", "mode": "READ_ONLY"}


def test_a_node_from_create_to_delete(locations: Any) -> None:
    nodes = locations.nodes()
    body = {"acceleratorType": "v4-8", "runtimeVersion": "x", "dataDisks": [DISK]}
    made = _done(locations, nodes.create(parent=PARENT, nodeId="d1", body=body))
    assert (made["state"], made["dataDisks"]) == ("READY", body["dataDisks"])
    _done(
        locations,
        nodes.patch(name=made["name"], updateMask="metadata,tags", body={"metadata": {"k": "v"}, "tags": ["t"]}),
    )
    _done(locations, nodes.stop(name=made["name"]))
    _done(locations, nodes.start(name=made["name"]))
    shown = nodes.get(name=made["name"], fields="name,networkEndpoints/accessConfig(externalIp),tags").execute()
    assert set(shown) == {"name", "networkEndpoints", "tags"}
    assert set(shown["networkEndpoints"][0]) == {"accessConfig"}
    assert nodes.getGuestAttributes(name=made["name"], body={"queryPath": "hostkeys/"}).execute()
    _done(locations, nodes.delete(name=made["name"]))


def test_queued_resources(locations: Any, api_cloud: Emulator) -> None:
    queued = locations.queuedResources()
    spec = {"parent": PARENT, "nodeId": "dqn1", "node": {"acceleratorType": "v4-8", "runtimeVersion": "x"}}
    body = {
        "tpu": {"nodeSpec": [spec]},
        "guaranteed": {"minDuration": "3600s"},
        "reservationName": f"{PARENT}/reservations/-",
    }
    made = _done(locations, queued.create(parent=PARENT, queuedResourceId="dq1", body=body))
    assert made["state"]["state"] == "ACCEPTED"
    api_cloud.wait_for_queued("dq1", "ACTIVE")
    assert queued.list(parent=PARENT).execute()["queuedResources"]
    _done(locations, queued.reset(name=made["name"], body={}))
    api_cloud.wait_for_queued("dq1", "ACTIVE")
    _done(locations, queued.delete(name=made["name"], force=True))
    with pytest.raises(HttpError) as gone:
        queued.get(name=made["name"]).execute()
    assert gone.value.status_code == 404


def test_locations_types_and_versions(locations: Any) -> None:
    assert len(locations.list(name="projects/emulated").execute()["locations"]) > 10
    assert locations.get(name=PARENT).execute()["locationId"] == "us-central2-b"
    kind = locations.acceleratorTypes().get(name=f"{PARENT}/acceleratorTypes/v4-32").execute()
    assert kind["acceleratorConfigs"] == [{"type": "V4", "topology": "2x2x4"}]
    assert locations.runtimeVersions().get(name=f"{PARENT}/runtimeVersions/tpu-ubuntu2204-base").execute()


def test_operations(locations: Any) -> None:
    body = {"acceleratorType": "v4-8", "runtimeVersion": "x"}
    begun = locations.nodes().create(parent=PARENT, nodeId="d2", body=body).execute()
    locations.operations().cancel(name=begun["name"]).execute()
    assert locations.operations().get(name=begun["name"]).execute()["metadata"]["cancelRequested"] is True
    assert begun["name"] in [each["name"] for each in locations.operations().list(name=PARENT).execute()["operations"]]
    locations.operations().delete(name=begun["name"]).execute()
    with pytest.raises(HttpError):
        locations.operations().get(name=begun["name"]).execute()


def test_methods_that_are_not_emulated_are_501(locations: Any) -> None:
    with pytest.raises(HttpError) as refused:
        locations.generateServiceIdentity(parent=PARENT, body={}).execute()
    assert refused.value.status_code == 501
