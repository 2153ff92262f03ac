"""The API as plain HTTP, for what no client library would send."""

from __future__ import annotations

import time
from typing import Any

import httpx
from emulator_support import PARENT

from tpux_emulator.emulator import Emulator


def ask(cloud: Emulator, verb: str, path: str, **how: Any) -> httpx.Response:
    """A request to the API; the path begins after `/v2/`."""
    with httpx.Client(trust_env=False, timeout=30) as http:
        return http.request(verb, f"{cloud.url}/v2/{path}", **how)


def create(cloud: Emulator, name: str, kind: str = "v4-8", *, parent: str = PARENT, **more: Any) -> httpx.Response:
    """Ask for a node."""
    body = {"acceleratorType": kind, "runtimeVersion": "tpu-ubuntu2204-base", **more}
    return ask(cloud, "POST", f"{parent}/nodes", params={"nodeId": name}, json=body)


def ready(cloud: Emulator, name: str, kind: str = "v4-8", **more: Any) -> dict[str, Any]:
    """Ask for a node and wait until it is READY."""
    assert create(cloud, name, kind, **more).status_code == 200
    cloud.wait_for(name, "READY", seconds=100)
    return node(cloud, name)


def node(cloud: Emulator, name: str) -> dict[str, Any]:
    """A node as the API shows it."""
    shown: dict[str, Any] = ask(cloud, "GET", f"{PARENT}/nodes/{name}").json()
    return shown


def queue(cloud: Emulator, name: str, *, nodes: int = 1, tier: str = "spot", **more: Any) -> httpx.Response:
    """Ask for a queued resource of nodes NAME-n, or NAME-n-0, NAME-n-1, ..."""
    spec: dict[str, Any] = {"parent": PARENT, "node": {"acceleratorType": "v4-8", "runtimeVersion": "x"}}
    spec |= (
        {"nodeId": f"{name}-n"}
        if nodes == 1
        else {"multisliceParams": {"nodeCount": nodes, "nodeIdPrefix": f"{name}-n"}}
    )
    body = {"tpu": {"nodeSpec": [spec]}, tier: {}, **more}
    query = {"queuedResourceId": name}
    return ask(cloud, "POST", f"{PARENT}/queuedResources", params=query, json=body)


def outcome(cloud: Emulator, operation: httpx.Response) -> dict[str, Any]:
    """The operation when it is done."""
    assert operation.status_code == 200, operation.text
    name = operation.json()["name"]
    while True:
        shown: dict[str, Any] = ask(cloud, "GET", name).json()
        if shown.get("done"):
            return shown
        time.sleep(0.02)
