"""The contracts of the plugin, on the emulator's Kubernetes API, with real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpux_gke.contract_fixture import emulated_cluster
from tpux_testing import LocalFixture, allocator_contract, hooks_contract, section_contract, transport_contract

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFixture]:
    """Start a cluster for the tests of this module."""
    with emulated_cluster({}) as fixture:
        yield fixture


def test_hooks() -> None:
    """Check the hooks."""
    hooks_contract("gke")


def test_section() -> None:
    """Check the section."""
    section_contract("gke")


def test_transport(local: LocalFixture) -> None:
    """Check the transport on a pod."""
    transport_contract("gke", local.worker, local.config, unreachable=local.unreachable)


def test_allocator(local: LocalFixture) -> None:
    """Check the allocator, with slices of two hosts."""
    allocator_contract("gke", local.config, existing=local.existing)
