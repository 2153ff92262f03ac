"""Durations, timestamps, pages, partial responses, worker counts, addresses."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux_emulator.api.call import Call
from tpux_emulator.api.paging import page
from tpux_emulator.api.partial_response import parse_fields, select_fields
from tpux_emulator.clock import Clock, format_timestamp, parse_timestamp
from tpux_emulator.cloud.catalog import load_catalog
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.store import Store
from tpux_emulator.errors import ApiError
from tpux_emulator.messages import Node, NodeState
from tpux_emulator.workers.address_only import AddressOnlyBackend
from tpux_emulator.workers.addresses import CAPACITY, AddressBlock


@given(st.floats(min_value=0, max_value=4e9))
def test_timestamps_round_trip(moment: float) -> None:
    assert parse_timestamp(format_timestamp(moment)) == pytest.approx(moment, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["2026-01-01T00:00:00.123456789Z", "2026-01-01T01:00:00.123456+01:00", "2026-01-01T00:00:00.123456"]
)
def test_timestamps_of_clients(text: str) -> None:
    assert parse_timestamp(text) == pytest.approx(1767225600.123456)


@given(st.sets(st.text("abc-0", min_size=1, max_size=6)), st.integers(1, 7))
def test_pages_have_every_item_once(tmp_cloud: Cloud, names: set[str], size: int) -> None:
    items = [(name, name) for name in names]
    seen, token = [], ""
    while True:
        call = Call(tmp_cloud, {}, {"pageSize": str(size), "pageToken": token}, b"")
        part, token = page(call, items)
        assert len(part) <= size
        seen += part
        if not token:
            break
    assert seen == sorted(names)


@pytest.fixture(scope="module")
def tmp_cloud(tmp_path_factory: pytest.TempPathFactory) -> Cloud:
    store = Store(tmp_path_factory.mktemp("formats") / "state.db")
    return Cloud(store, Clock(1, 0, 0), load_catalog(), AddressOnlyBackend(AddressBlock(16)))


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ("a", {"a": {"b": 1, "c": [{"d": 2, "e": 3}]}}),
        ("a/b", {"a": {"b": 1}}),
        ("a(b,c/d),f", {"a": {"b": 1, "c": [{"d": 2}]}, "f": 4}),
        ("*/b,f", {"a": {"b": 1}, "f": 4}),
        ("nothing", {}),
    ],
)
def test_partial_responses(fields: str, left: dict[str, object]) -> None:
    assert select_fields({"a": {"b": 1, "c": [{"d": 2, "e": 3}]}, "f": 4}, parse_fields(fields)) == left


@given(st.text("ab,/()*", max_size=12))
def test_a_selection_is_parsed_or_an_api_error(fields: str) -> None:
    with contextlib.suppress(ApiError):
        assert isinstance(parse_fields(fields), dict)


@given(st.sampled_from(list(NodeState)), st.dictionaries(st.text(), st.text()), st.booleans())
def test_messages_round_trip(state: NodeState, labels: dict[str, str], numbers: bool) -> None:
    node = Node(name="n", state=state, labels=labels or None)
    assert Node.model_validate(node.to_json(enum_numbers=numbers)) == node


def test_worker_counts_of_the_catalog() -> None:
    catalog = load_catalog()
    counts = {"v2-8": 1, "v3-32": 4, "v4-8": 1, "v4-16": 2, "v4-4096": 512, "v5p-8": 1, "v5p-128": 16, "v5litepod-1": 1,
              "v5litepod-8": 1, "v5litepod-16": 4, "v5litepod-256": 64, "v6e-8": 1, "v6e-256": 64}  # fmt: skip
    assert {kind: catalog.workers(kind) for kind in counts} == counts
    for zone in catalog.zones:
        for kind in catalog.types(zone):
            config = catalog.config(kind)
            assert catalog.type_of(Node(accelerator_config=config), zone) == kind


@given(st.integers(0, CAPACITY - 1), st.integers(0, CAPACITY - 1))
def test_addresses_are_unique(one: int, other: int) -> None:
    block = AddressBlock(16)
    kinds = (block.external, block.internal, block.metadata)
    addresses = {kind(slot) for kind in kinds for slot in (one, other)} | {block.probe}
    assert len(addresses) == 1 + 3 * len({one, other})
    assert all(address.startswith("127.16.") for address in addresses)
