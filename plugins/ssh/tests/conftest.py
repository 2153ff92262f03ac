"""What the tests share: a store of their own, real sshd processes, jobs, and the command line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# pytest's importlib mode leaves the tests' own modules to us.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from ssh_servers import Server, free_port, missing
from ssh_support import MakeServer, make_job, worker_at

from tpux import Job
from tpux_ssh.host import SshHost
from tpux_ssh.keyfiles import own_key, public_line
from tpux_ssh.section import SshSection

TPUX = str(Path(sys.executable).with_name("tpux"))
_addresses = itertools.count(2)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `$TPUX_HOME` of the test's own."""
    home = tmp_path / "tpux"
    monkeypatch.setenv("TPUX_HOME", str(home))
    return home


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Starts an sshd that lets tpux's own key in."""
    if why := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    started: list[Server] = []

    def make(address: str = "", **options: object) -> Server:
        address = address or f"127.0.4.{next(_addresses)}"
        lets_in = options.pop("lets_in", None) or [public_line(own_key())]
        directory = tmp_path / f"server-{len(started)}"
        server = Server(directory, address, free_port(), lets_in, **options)  # type: ignore[arg-type]
        started.append(server)
        return server.start()

    yield make
    for server in started:
        server.stop()


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """One sshd."""
    return make_server()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose workers have two seconds to answer."""
    return make_job(tmp_path / "job", ssh=SshSection(connect_timeout=2))


@pytest.fixture
def host(server: Server, job: Job) -> Iterator[SshHost]:
    """A worker that can be reached."""
    host = SshHost(worker_at(server), job)
    yield host
    host.close()


@pytest.fixture
def tpux(store: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs the command; at the end all jobs are deleted and the supervisor is stopped."""

    def run(*words: str, env: Mapping[str, str] = {}, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TPUX, *words], capture_output=True, text=True, timeout=timeout, env={**os.environ, **env}
        )

    yield run
    if (store / "jobs").exists():
        run("delete", "-y", "--name", "*")
        run("supervisor", "stop")
