"""The plugin keeps the contracts of an allocator and of a transport."""

from __future__ import annotations

import pytest

from tpux_testing import (
    allocator_contract,
    hooks_contract,
    section_contract,
    transport_contract,
    worker,
)


def test_hooks_and_sections() -> None:
    hooks_contract("local")
    section_contract("local")


@pytest.mark.parametrize("tpu", [{}, {"accelerator": "v4-16", "node_count": 2}], ids=["one worker", "multislice"])
def test_allocator(tpu: dict[str, object]) -> None:
    allocator_contract("local", {"tpu": tpu})


def test_transport() -> None:
    transport_contract("local", unreachable=worker(home="/nowhere/worker"))
