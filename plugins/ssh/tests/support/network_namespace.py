"""A network namespace of the tests' own, in which a server is cut off as by a network that drops packets."""

from __future__ import annotations

import ipaddress
import os
import subprocess


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
