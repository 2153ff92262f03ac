"""Tests of the emulator with google-cloud-tpu over REST."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulator_support import PARENT
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import tpu_v2

from tpux_emulator.emulator import Emulator


@pytest.fixture(scope="module")
def client(api_cloud: Emulator) -> Iterator[tpu_v2.TpuClient]:
    options = ClientOptions(api_endpoint=api_cloud.url)
    with tpu_v2.TpuClient(transport="rest", credentials=AnonymousCredentials(), client_options=options) as made:
        yield made


def _node(**more: object) -> tpu_v2.Node:
    return tpu_v2.Node(accelerator_type="v4-16", runtime_version="tpu-ubuntu2204-base", **more)


def test_a_node_from_create_to_delete(client: tpu_v2.TpuClient) -> None:
    spot = tpu_v2.SchedulingConfig(spot=True)
    made = client.create_node(
        parent=PARENT, node_id="c1", node=_node(labels={"a": "b"}, scheduling_config=spot)
    ).result(60)
    assert made.state == tpu_v2.Node.State.READY
    assert made.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V4
    assert len(made.network_endpoints) == 2
    changed = tpu_v2.Node(name=made.name, labels={"x": "y"})
    after = client.update_node(node=changed, update_mask={"paths": ["labels"]}).result(60)
    assert dict(after.labels) == {"x": "y"}
    assert made.name in [node.name for node in client.list_nodes(parent=PARENT)]
    with pytest.raises(exceptions.Conflict):
        client.create_node(parent=PARENT, node_id="c1", node=_node())
    client.delete_node(name=made.name).result(60)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=made.name)


def test_stop_and_start(client: tpu_v2.TpuClient) -> None:
    node = tpu_v2.Node(accelerator_type="v4-8", runtime_version="x")
    name = client.create_node(parent=PARENT, node_id="c2", node=node).result(60).name
    assert client.stop_node({"name": name}).result(60).state == tpu_v2.Node.State.STOPPED
    assert client.start_node({"name": name}).result(60).state == tpu_v2.Node.State.READY
    client.delete_node(name=name).result(60)


def test_a_slice_by_its_topology(client: tpu_v2.TpuClient) -> None:
    config = tpu_v2.AcceleratorConfig(type_=tpu_v2.AcceleratorConfig.Type.V4, topology="2x2x4")
    node = tpu_v2.Node(accelerator_config=config, runtime_version="x")
    made = client.create_node(parent=PARENT, node_id="c3", node=node).result(60)
    assert (made.accelerator_type, len(made.network_endpoints)) == ("v4-32", 4)
    client.delete_node(name=made.name).result(60)


def test_queued_resources_one_and_several(client: tpu_v2.TpuClient, api_cloud: Emulator) -> None:
    one = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="cqn1", node=_node())
    params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(node_count=3, node_id_prefix="cms")
    several = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, multislice_params=params, node=_node())
    for name, spec in (("cq1", one), ("cq2", several)):
        request = tpu_v2.QueuedResource(tpu={"node_spec": [spec]}, spot={})
        made = client.create_queued_resource(parent=PARENT, queued_resource_id=name, queued_resource=request).result(60)
        api_cloud.wait_for_queued(name, "ACTIVE")
        shown = client.get_queued_resource(name=made.name)
        assert shown.state.state == tpu_v2.QueuedResourceState.State.ACTIVE
    nodes = [node.name.rpartition("/")[2] for node in client.list_nodes(parent=PARENT)]
    assert {"cqn1", "cms-0", "cms-1", "cms-2"} <= set(nodes)
    for shown in client.list_queued_resources(parent=PARENT):
        client.delete_queued_resource({"name": shown.name, "force": True}).result(60)
    assert not {"cqn1", "cms-0"} & {node.name.rpartition("/")[2] for node in client.list_nodes(parent=PARENT)}


def test_an_operation_that_fails_raises_its_error(client: tpu_v2.TpuClient, api_cloud: Emulator) -> None:
    api_cloud.rule("fail", name="c4", method="nodes.create", code=13, message="an internal error has occurred", count=1)
    with pytest.raises(exceptions.GoogleAPICallError, match="an internal error has occurred"):
        client.create_node(parent=PARENT, node_id="c4", node=_node()).result(60)


def test_a_retry_survives_an_outage(client: tpu_v2.TpuClient, api_cloud: Emulator) -> None:
    api_cloud.rule("error", status=503, method="nodes.list", zone="us-central1-a", count=2)
    retry = Retry(predicate=lambda error: isinstance(error, exceptions.ServiceUnavailable), initial=0.01, timeout=20)
    assert not list(client.list_nodes(parent="projects/emulated/locations/us-central1-a", retry=retry))


def test_types_versions_and_guest_attributes(client: tpu_v2.TpuClient) -> None:
    types = {each.type_ for each in client.list_accelerator_types(parent=PARENT)}
    assert "v4-8" in types
    assert "v6e-8" not in types
    assert list(client.list_runtime_versions(parent=PARENT))
    name = client.create_node(parent=PARENT, node_id="c5", node=_node()).result(60).name
    answer = client.get_guest_attributes({"name": name, "query_path": "hostname/"})
    assert [each.query_value.items[0].key for each in answer.guest_attributes] == ["hostname", "hostname"]
    client.delete_node(name=name).result(60)
