"""A pytest plugin with a fixture for workers that are directories: `def test_x(local_host): host = local_host()`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tpux import Worker
from tpux_local.host import LocalHost
from tpux_local.processes import processes_of, send

NewHost = Callable[..., LocalHost]


@pytest.fixture
def local_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewHost]:
    """Return a function that returns a connection to a new worker, a directory; its processes end with the test.

    Keyword arguments are variables of the worker's programs: PATH, LANG, USER.

    Example:
        def test_setup(local_host):
            host = local_host(PATH="/usr/bin:/bin")
            assert host.run("pwd").text == str(host.home)
    """
    hosts: list[LocalHost] = []

    def make(**variables: str) -> LocalHost:
        home = tmp_path_factory.mktemp("worker")
        (home / "tmp").mkdir()
        worker = Worker(len(hosts), address="127.0.0.1", internal_ip="127.0.0.1", details={"home": str(home)})
        hosts.append(LocalHost(worker, dict(variables)))
        return hosts[-1]

    yield make
    while left := processes_of([host.home for host in hosts]):
        send(left, signal.SIGKILL)
