"""Plain HTTP requests to the API, for what no client library sends."""

from __future__ import annotations

import time
from typing import Any

import httpx
from emulator_support import PARENT

from tpux_emulator.emulator import Emulator


def ask(cloud: Emulator, verb: str, path: str, **how: Any) -> httpx.Response:
    """Send a request to the API; the path begins after `/v2/`."""
    with httpx.Client(trust_env=False, timeout=30) as http:
        return http.request(verb, f"{cloud.url}/v2/{path}", **how)


def create(cloud: Emulator, name: str, kind: str = "v4-8", *, parent: str = PARENT, **more: Any) -> httpx.Response:
    """Request the creation of a node."""
    body = {"acceleratorType": kind, "runtimeVersion": "tpu-ubuntu2204-base", **more}
    return ask(cloud, "POST", f"{parent}/nodes", params={"nodeId": name}, json=body)


def ready(cloud: Emulator, name: str, kind: str = "v4-8", **more: Any) -> dict[str, Any]:
    """Create a node and wait until it is READY."""
    assert create(cloud, name, kind, **more).status_code == 200
    cloud.wait_for(name, "READY", seconds=100)
    return node(cloud, name)


def node(cloud: Emulator, name: str) -> dict[str, Any]:
    """Return a node from the API."""
    shown: dict[str, Any] = ask(cloud, "GET", f"{PARENT}/nodes/{name}").json()
    return shown


def queue(
    cloud: Emulator, name: str, kind: str = "v4-8", *, parent: str = PARENT, nodes: int = 1, tier: str = "spot",
    **more: Any,
) -> httpx.Response:  # fmt: skip
    """Request a queued resource with the node NAME-n, or the nodes NAME-n-0, NAME-n-1, ..."""
    spec: dict[str, Any] = {"parent": parent, "node": {"acceleratorType": kind, "runtimeVersion": "x"}}
    spec |= (
        {"nodeId": f"{name}-n"}
        if nodes == 1
        else {"multisliceParams": {"nodeCount": nodes, "nodeIdPrefix": f"{name}-n"}}
    )
    body = {"tpu": {"nodeSpec": [spec]}, tier: {}, **more}
    query = {"queuedResourceId": name}
    return ask(cloud, "POST", f"{parent}/queuedResources", params=query, json=body)


def outcome(cloud: Emulator, operation: httpx.Response) -> dict[str, Any]:
    """Wait until an operation is done and return it."""
    assert operation.status_code == 200, operation.text
    name = operation.json()["name"]
    while True:
        shown: dict[str, Any] = ask(cloud, "GET", name).json()
        if shown.get("done"):
            return shown
        time.sleep(0.02)
