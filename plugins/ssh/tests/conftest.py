"""What the tests share: a store of their own, real sshd processes, jobs, and the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest's importlib mode leaves the tests' own modules to us.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from ssh_servers import Server
from ssh_support import MakeServer, Tpux, make_job, servers_in, worker_at

from tpux import Job
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `$TPUX_HOME` of the test's own."""
    home = tmp_path / "tpux"
    monkeypatch.setenv("TPUX_HOME", str(home))
    return home


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Starts an sshd that lets tpux's own key in."""
    with servers_in(tmp_path) as make:
        yield make


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """One sshd."""
    return make_server()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose workers have a minute to answer, for the machine may be busy."""
    return make_job(tmp_path / "job", ssh=SshSection(connect_timeout=60))


@pytest.fixture
def host(server: Server, job: Job) -> Iterator[SshHost]:
    """A worker that can be reached."""
    host = SshHost(worker_at(server), job)
    yield host
    host.close()


@pytest.fixture
def tpux(store: Path, make_server: MakeServer) -> Iterator[Tpux]:
    """The command; what it has started ends while the servers still run."""
    del make_server
    yield (command := Tpux(store))
    command.clear()
