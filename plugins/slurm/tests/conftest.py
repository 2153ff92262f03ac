"""A Slurm cluster of four nodes for all tests, and jobs on it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest's importlib mode does not add the tests' helper modules to sys.path.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from slurm_support import Jobs

from tpux_slurm.contract_fixture import Cluster, why_not
from tpux_testing.commands import CommandLine


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Start a cluster."""
    if reason := why_not():
        pytest.skip(reason)
    made = tempfile.TemporaryDirectory(prefix="tpux-slurm-", ignore_cleanup_errors=True)
    with made as directory, Cluster(Path(directory)) as cluster:
        yield cluster


@pytest.fixture
def jobs(slurm: Cluster, tpux_cli: CommandLine) -> Iterator[Jobs]:
    """Return the commands of tpux in a shell in which Slurm's commands work."""
    slurm.wait_until_idle()
    tpux_cli.env |= {name: slurm.environment[name] for name in ("SLURM_CONF", "PATH")}
    yield Jobs(slurm, tpux_cli)
    slurm.cancel()  # also those of a test that has failed: not in the way of the next one
