"""Workers behind a router, each an SSH server in a network namespace of its own, and a router that drops packets.

The router is a namespace too, so that a packet is lost on the way, as in a network, and not refused by the machine that
sends it. Needs root, iproute2 and iptables.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/ssh/tests/support"))

from ssh_servers import Server, free_port
from ssh_servers import missing as missing_for_servers

from tpux_ssh.keyfiles import make_key, public_line

Way = Literal["both", "to", "from"]
"""Which packets a cut drops: those to a worker, those from it, or both."""


def missing() -> str:
    """Return why this machine can have no such network, or '' if it can."""
    if reason := missing_for_servers():
        return reason
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("iptables", "iptables")):
        if shutil.which(program, path=path) is None:
            return f"{package} is not installed"
    name = f"tpux{os.getpid()}p"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "exec", name, "iptables", "-w", "-A", "FORWARD", "-j", "DROP")
    except subprocess.CalledProcessError as error:
        return f"no network namespace with a packet filter can be made: {error.stderr.strip()}"
    finally:
        _try("ip", "netns", "delete", name)
    return ""


class Network:
    """A router and its workers.

    Attributes:
        servers: the SSH servers of the workers, in order.
    """

    def __init__(self) -> None:
        self._stem = f"tx{os.getpid()}"
        # Of the range for benchmarks (RFC 2544), which no machine has: eight addresses for each process, two a link.
        self._first = ipaddress.IPv4Address("198.19.0.0") + os.getpid() % 8192 * 8
        self.servers: list[Server] = []

    def create(self) -> None:
        """Make the router, and connect it with this machine."""
        router = self._router
        _run("ip", "netns", "add", router)
        self._link("", self._stem, router, f"{self._stem}r", 0)
        _run("ip", "-n", router, "link", "set", "lo", "up")
        _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def add_worker(self, directory: Path, authorized_keys: list[str]) -> Server:
        """Start an SSH server behind the router."""
        index = len(self.servers)
        name, link = self._worker(index), 1 + index
        _run("ip", "netns", "add", name)
        self._link(self._router, self._port(index), name, f"{self._stem}i{index}", link)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "route", "add", "default", "via", self._address(link, 0))
        _run("ip", "route", "add", f"{self._address(link, 1)}/32", "via", self._address(0, 1))
        server = Server(directory, self._address(link, 1), free_port(), authorized_keys, namespace=name)
        self.servers.append(server)
        return server.start()

    def cut(self, index: int, way: Way = "both") -> None:
        """Drop the packets of a worker, in one direction or in both."""
        self._filter("-A", index, way)

    def restore(self, index: int, way: Way = "both") -> None:
        """Drop them no more."""
        self._filter("-D", index, way)

    def limit(self, index: int, rate: str) -> None:
        """Send no more than that to a worker from now on, such as 4mbit."""
        shape = ("rate", rate, "burst", "32kb", "latency", "400ms")
        self._in_router("tc", "qdisc", "replace", "dev", self._port(index), "root", "tbf", *shape)

    def unlimited(self, index: int) -> None:
        """Send as fast as possible again."""
        self._in_router("tc", "qdisc", "delete", "dev", self._port(index), "root")

    def sent(self, index: int) -> int:
        """Return how many bytes the router has sent to a worker."""
        shown = self._in_router("cat", f"/sys/class/net/{self._port(index)}/statistics/tx_bytes")
        return int(shown)

    def remove(self) -> None:
        """End the servers, and remove all namespaces; their links go with them."""
        for index, server in enumerate(self.servers):
            server.stop()
            _try("ip", "netns", "delete", self._worker(index))
        _try("ip", "link", "delete", self._stem)  # now, and not once the kernel has ended the namespace
        _try("ip", "netns", "delete", self._router)

    def _filter(self, change: str, index: int, way: Way) -> None:
        address = self._address(1 + index, 1)
        directions = {"to": [("-d", address)], "from": [("-s", address)]}
        for direction in directions.get(way, [*directions["to"], *directions["from"]]):
            self._in_router("iptables", "-w", change, "FORWARD", *direction, "-j", "DROP")

    def _in_router(self, *words: str) -> str:
        return _run("ip", "netns", "exec", self._router, *words)

    def _link(self, near: str, near_name: str, far: str, far_name: str, number: int) -> None:
        """Make a pair of interfaces in two namespaces; '' is that of this process."""
        there = ["-n", near] if near else []
        _run("ip", *there, "link", "add", near_name, "type", "veth", "peer", "name", far_name, "netns", far)
        for namespace, name, end in ((there, near_name, 0), (["-n", far], far_name, 1)):
            _run("ip", *namespace, "address", "add", f"{self._address(number, end)}/31", "dev", name)
            _run("ip", *namespace, "link", "set", name, "up")

    def _address(self, link: int, end: int) -> str:
        return str(self._first + 2 * link + end)

    @property
    def _router(self) -> str:
        return f"{self._stem}r"

    def _worker(self, index: int) -> str:
        return f"{self._stem}w{index}"

    def _port(self, index: int) -> str:
        return f"{self._stem}p{index}"


@contextmanager
def open_network(directory: Path, home: Path, workers: int) -> Iterator[Network]:
    """Make a network with workers that accept the key of a store; remove it at the end."""
    keys = [public_line(make_key(home / "ssh" / "id_ed25519", "tpux"))]
    network = Network()
    with ExitStack() as stack:
        stack.callback(network.remove)
        network.create()
        for index in range(workers):
            network.add_worker(directory / f"worker-{index}", keys)
        yield network


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _try(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True)
