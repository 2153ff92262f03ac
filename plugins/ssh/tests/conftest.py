"""Shared fixtures: an empty store, real sshd processes, jobs, and the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest's importlib mode does not add the tests' helper modules to sys.path.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from network_namespace import Namespace
from ssh_servers import Server
from ssh_support import MakeServer, Tpux, make_job, servers_in, worker_at

from tpux import Job
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set `$TPUX_HOME` to a new directory for each test."""
    home = tmp_path / "tpux"
    monkeypatch.setenv("TPUX_HOME", str(home))
    return home


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Start sshd processes that accept tpux's own key."""
    with servers_in(tmp_path) as make:
        yield make


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """Start one sshd."""
    return make_server()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job with a connect timeout of a minute, for a busy machine."""
    return make_job(tmp_path / "job", ssh=SshSection(connect_timeout=60))


@pytest.fixture
def host(server: Server, job: Job) -> Iterator[SshHost]:
    """Return a reachable worker."""
    host = SshHost(worker_at(server), job)
    yield host
    host.close()


@pytest.fixture
def tpux(store: Path, make_server: MakeServer) -> Iterator[Tpux]:
    """Return the command; its jobs are deleted before the servers stop."""
    del make_server
    yield (command := Tpux(store))
    command.clear()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """Return a network namespace with one address; needs root and iproute2."""
    namespace = Namespace()
    try:
        namespace.create()
    except FileNotFoundError:
        pytest.skip("iproute2 is not installed")
    except subprocess.CalledProcessError as error:
        namespace.remove()
        pytest.skip(f"no network namespace can be made: {error.stderr.strip()}")
    yield namespace
    namespace.remove()
