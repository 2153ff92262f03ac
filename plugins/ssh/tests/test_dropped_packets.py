"""A worker that no packet reaches any more, in the middle of a step: not refused, as by a machine, but silent."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from collections.abc import Iterator

import pytest
from ssh_support import MakeServer

from tpux import Steps, hookimpl, sh
from tpux.testing.sandbox import Sandbox


class Namespace:
    """A network namespace with one address, whose answers can be dropped. Needs root and iproute2."""

    def __init__(self) -> None:
        self.name = f"tpux{os.getpid()}"
        # Of the range for benchmarks (RFC 2544), which no machine has: four addresses for each process.
        first = ipaddress.IPv4Address("198.18.0.0") + os.getpid() % 16384 * 4
        self.outside, self.address = str(first + 1), str(first + 2)

    def create(self) -> None:
        inner, mac = f"{self.name}i", "02:00:00:00:00:02"
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "name", inner, "address", mac, "netns", self.name)
        ip("address", "add", f"{self.outside}/30", "dev", self.name)
        ip("-n", self.name, "address", "add", f"{self.address}/30", "dev", inner)
        ip("link", "set", self.name, "up")
        ip("-n", self.name, "link", "set", inner, "up")
        # Without this, the machine would soon say that there is no route to the host.
        ip("neighbour", "replace", self.address, "lladdr", mac, "dev", self.name, "nud", "permanent")

    def cut(self) -> None:
        ip("-n", self.name, "route", "add", "blackhole", f"{self.outside}/32")

    def restore(self) -> None:
        ip("-n", self.name, "route", "delete", "blackhole", f"{self.outside}/32")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
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


class Waits:
    """A module whose set-up lasts until there is a file `go`."""

    @hookimpl
    def setup(self) -> Steps:
        yield sh("echo begin | tee -a ran; until [ -e go ]; do sleep 0.1; done; echo end | tee -a ran")


def test_a_worker_whose_packets_are_dropped_delays_no_other_and_its_step_runs_once(
    namespace: Namespace, make_server: MakeServer
) -> None:
    with Sandbox({"waits": Waits()}) as sandbox:
        servers = [make_server(), make_server(namespace.address, namespace=namespace.name)]
        addresses = [f"{server.address}:{server.port}" for server in servers]
        job = sandbox.start(
            {
                "tpu": {"allocation_mode": "hosts"},
                "hosts": addresses,
                "setup": {"modules": ["waits"]},
                "watch": {"lost_after": "1h"},
                "ssh": {"connect_timeout": 5},
                "command": {"cmd": "cat ran"},
            }
        )
        logs = job.context.record.logs

        def has_logged(line: str, worker: int) -> bool:
            log = logs / f"waits_worker_{worker}.log"
            return log.exists() and f"\n{line}\n" in log.read_text()

        job.until(lambda _: has_logged("begin", 0) and has_logged("begin", 1))
        namespace.cut()
        for server in servers:
            (server.home / "go").touch()
        job.until(lambda _: has_logged("end", 0))
        assert not has_logged("end", 1)
        job.until(lambda _: 1 in job.context.connections.unreachable)
        assert job.state.state == "setting-up"
        namespace.restore()
        job.until(lambda state: state.ended)
        assert job.state.state == "succeeded", job.state.why
        assert [job.output(worker) for worker in (0, 1)] == ["begin\nend\n"] * 2
