"""A worker's metadata, as the Compute Engine metadata server has it.

Source: "View and query VM metadata" and "Predefined metadata keys" of the Compute Engine documentation; the TPU
attributes are those that the cluster resolvers of JAX and TensorFlow read.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from tpux_emulator.cloud import tokens, views
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import NodeRecord, WorkerRecord, short_name, stable_number
from tpux_emulator.protojson import JsonObject

_PROJECT_NUMBER = 123456789012
_POLL_INTERVAL = 0.2
_GUEST = "instance/guest-attributes/"
Found = tuple[str, str]


class Metadata:
    """Reads and writes the metadata of workers.

    Args:
        cloud: the cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def read(self, node: NodeRecord, worker: WorkerRecord, path: str, *, recursive: bool) -> Found | None:
        """Return the text at a path and its media type; None if there is nothing.

        A directory is given as a list of names, or with `recursive` as JSON with everything below it.
        """
        value = self._at(node, worker, path)
        if value is None:
            return None
        if isinstance(value, dict | list) and (recursive or path.endswith("/token")):  # one value, although it is JSON
            return json.dumps(value), "application/json"
        if isinstance(value, list):
            return "".join(f"{index}/\n" for index in range(len(value))), "application/text"
        if isinstance(value, dict):
            return "".join(
                f"{k}/\n" if isinstance(v, dict | list) else f"{k}\n" for k, v in value.items()
            ), "application/text"
        return _text(value), "application/text"

    def etag(self, node: NodeRecord, worker: WorkerRecord, path: str) -> str:
        """Return a hash of the value at a path."""
        return hashlib.sha256(json.dumps(self._at(node, worker, path)).encode()).hexdigest()[:16]

    async def changed(
        self,
        node: NodeRecord,
        worker: WorkerRecord,
        path: str,
        last: str,
        timeout: float,
        abandoned: Callable[[], Awaitable[bool]],
    ) -> None:
        """Wait until the value at a path changes.

        Args:
            node: the node.
            worker: the worker.
            path: the path.
            last: the etag of the value that the client knows; "" for the current one.
            timeout: seconds after which the waiting ends.
            abandoned: returns True once nobody waits any more.
        """
        before = last or self.etag(node, worker, path)
        deadline = time.monotonic() + timeout
        while self.etag(node, worker, path) == before and time.monotonic() < deadline and not await abandoned():
            await asyncio.sleep(_POLL_INTERVAL)

    def publish(self, node: NodeRecord, worker: WorkerRecord, path: str, value: str | None) -> int:
        """Set a guest attribute, or delete it with None. Return the HTTP status of the answer."""
        key = path.removeprefix(_GUEST)
        if not path.startswith(_GUEST) or key.count("/") != 1:
            return 405
        if (node.spec.metadata or {}).get("enable-guest-attributes", "").upper() == "FALSE":
            return 403
        if value is None:
            worker.guest_attributes.pop(key, None)
        else:
            worker.guest_attributes[key] = value
        self._cloud.save(node)
        return 200

    def _at(self, node: NodeRecord, worker: WorkerRecord, path: str) -> JsonValue:
        value: JsonValue = self._tree(node, worker)
        for part in [part for part in path.split("/") if part]:
            if isinstance(value, list):
                value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    def _tree(self, node: NodeRecord, worker: WorkerRecord) -> JsonObject:
        project, zone = node.name.split("/")[1], node.zone
        planned: JsonObject = {}
        if node.maintenance is not None:  # in the time of the workers' own clock, which may run slower
            clock, real = self._cloud.clock, time.time()
            left = node.maintenance - clock.now()
            begins = real + left / clock.rate
            planned = {"upcoming-maintenance": views.maintenance(begins, now=real)}
        return {
            "instance": {
                **planned,
                "attributes": self._attributes(node, worker),
                "cpu-platform": "AMD Milan",
                "guest-attributes": _grouped(worker.guest_attributes),
                "hostname": f"{worker.hostname}.{zone}.c.{project}.internal",
                "id": stable_number(f"{node.uid} {worker.index}"),
                "machine-type": f"projects/{_PROJECT_NUMBER}/machineTypes/ct-emulated",
                "maintenance-event": "NONE",
                "name": worker.hostname,
                "network-interfaces": [
                    {
                        "access-configs": [{"externalIp": worker.external, "type": "ONE_TO_ONE_NAT"}],
                        "ip": worker.internal,
                        "network": f"projects/{_PROJECT_NUMBER}/networks/default",
                    }
                ],
                "preempted": "TRUE" if node.preempted else "FALSE",
                "scheduling": {"onHostMaintenance": "TERMINATE", "preemptible": "TRUE" if node.spot else "FALSE"},
                "service-accounts": {"default": self._account(node)},
                "tags": list(node.spec.tags or []),
                "zone": f"projects/{_PROJECT_NUMBER}/zones/{zone}",
            },
            "project": {
                "attributes": dict(self._cloud.settings.project_metadata),
                "numeric-project-id": _PROJECT_NUMBER,
                "project-id": project,
            },
        }

    def _attributes(self, node: NodeRecord, worker: WorkerRecord) -> JsonObject:
        environment = {
            "ACCELERATOR_TYPE": node.accelerator_type,
            "CONSUMER_PROJECT_ID": node.name.split("/")[1],
            "NODE_ID": short_name(node.name),
            "WORKER_ID": str(worker.index),
            "ZONE": node.zone,
        }
        return {
            **(node.spec.metadata or {}),
            "accelerator-type": node.accelerator_type,
            "agent-worker-number": str(worker.index),
            "instance-id": short_name(node.name),
            "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in environment.items()),
            "worker-network-endpoints": ",".join(f"unknown:unknown:{each.internal}" for each in node.workers),
        }

    def _account(self, node: NodeRecord) -> JsonObject:
        account = views.node(node, self._cloud.catalog).service_account
        assert account is not None  # noqa: S101  the view fills it in
        token: JsonObject = {"access_token": tokens.token_of(node), "expires_in": 3599, "token_type": "Bearer"}
        return {
            "aliases": ["default"],
            "email": account.email,
            "identity": "emulated",
            "scopes": "".join(f"{scope}\n" for scope in account.scope or []),
            "token": token,
        }


def _grouped(attributes: dict[str, str]) -> JsonObject:
    tree: dict[str, JsonObject] = {}
    for path, value in attributes.items():
        namespace, _, key = path.partition("/")
        tree.setdefault(namespace, {})[key] = value
    return dict(tree)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
