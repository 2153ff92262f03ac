"""What `tpux plugins check` uses in place of machines: an emulated worker for `ssh`, open ports for `hosts`."""

from __future__ import annotations

import getpass
import json
import os
import socket
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import Worker
from tpux_ssh.keyfiles import make_key, public_line
from tpux_testing import LocalFixture

if TYPE_CHECKING:
    from tpux_emulator.emulator import Emulator

_NODES = "v2/projects/emulated/locations/us-central2-b/nodes"
_BOOT_TIMEOUT = 60.0
"""Seconds until an emulated worker answers, also the timeout of a login."""


@contextmanager
def emulated_worker(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Start an SSH server whose sessions have a home directory of their own, and log in with a new key.

    Raises:
        ModuleNotFoundError: tpux-plugin-emulator is not installed.
        TpuxError: this machine has no sshd.
    """
    from tpux_emulator.emulator import Emulator

    with tempfile.TemporaryDirectory(prefix="tpux-ssh-check-") as made, ExitStack() as stack:
        key = make_key(Path(made) / "key", "tpux-check")
        cloud = stack.enter_context(Emulator(Path(made) / "emulator"))
        address = _boot(cloud, public_line(key))
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))  # nobody listens on it, and nobody else can
        given = cast("Mapping[str, object]", config.get("ssh") or {})
        section = {**given, "private_key": str(key), "connect_timeout": _BOOT_TIMEOUT}
        yield LocalFixture(
            {**config, "ssh": section},
            worker=Worker(0, address=address),
            unreachable=Worker(0, address=f"127.0.0.1:{closed.getsockname()[1]}"),
        )


def _boot(cloud: Emulator, public_key: str) -> str:
    """Create a node with one worker that accepts a key; return its address."""
    user = "tester" if os.geteuid() == 0 else getpass.getuser()  # as Google's images, workers refuse root
    node = {
        "acceleratorType": "v4-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "metadata": {"ssh-keys": f"{user}:{public_key}"},
    }
    _ask(f"{cloud.url}/{_NODES}?nodeId=check", node)
    cloud.wait_for("check", "READY", seconds=_BOOT_TIMEOUT)
    shown = _ask(f"{cloud.url}/{_NODES}/check")
    address: str = shown["networkEndpoints"][0]["accessConfig"]["externalIp"]
    return f"{user}@{address}:{cloud.ssh_port}"


def _ask(url: str, body: object = None) -> dict[str, list[dict[str, dict[str, str]]]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  (on loopback)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return cast("dict[str, list[dict[str, dict[str, str]]]]", json.load(answer))


@contextmanager
def open_ports(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Replace the machines by ports on loopback: the allocator leases machines, and connects to their SSH port."""
    given = config.get("hosts") or {}
    section = given if isinstance(given, Mapping) else {"addresses": given}
    with ExitStack() as stack:
        addresses = []
        for _ in cast("list[str]", section.get("addresses") or [""]):
            port = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128)).getsockname()[1]
            addresses.append(f"127.0.0.1:{port}")
        yield LocalFixture({**config, "hosts": {**section, "addresses": addresses}})
