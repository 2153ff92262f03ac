"""The contracts of the plugin, with a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpux_slurm.contract_fixture import cluster, why_not
from tpux_testing import LocalFixture, allocator_contract, hooks_contract, transport_contract

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFixture]:
    """Start a cluster for the tests of this module."""
    with cluster({}) as fixture:
        yield fixture


def test_hooks() -> None:
    """Check the hooks."""
    hooks_contract("slurm")


def test_transport(local: LocalFixture) -> None:
    """Check the transport on a node of a job."""
    transport_contract("slurm", local.worker, local.config, unreachable=local.unreachable)


def test_allocator(local: LocalFixture) -> None:
    """Check the allocator, with jobs of two nodes."""
    allocator_contract("slurm", local.config, existing=local.existing)
