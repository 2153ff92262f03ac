"""Two methods of the Compute Engine API: projects.get, for gcloud's `tpu-vm ssh` and `scp`, and disks.get."""

from __future__ import annotations

import hashlib
import json

from pydantic import JsonValue

from tpux_emulator.api.call import Call, Method
from tpux_emulator.cloud import disks
from tpux_emulator.errors import ApiError
from tpux_emulator.protojson import JsonObject


def _get_project(call: Call) -> JsonObject:
    project = call.path["project"]
    items: list[JsonObject] = [{"key": k, "value": v} for k, v in call.cloud.settings.project_metadata.items()]
    metadata: JsonObject = {
        "kind": "compute#metadata",
        "fingerprint": hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12],
    }
    if items:
        metadata["items"] = list(items)
    return {
        "kind": "compute#project",
        "id": "123456789012",
        "name": project,
        "selfLink": f"https://www.googleapis.com/compute/v1/projects/{project}",
        "commonInstanceMetadata": metadata,
    }


def _get_disk(call: Call) -> JsonObject:
    """Return a disk.

    Raises:
        ApiError: 404 if it does not exist.
    """
    zone, name = call.path["location"], call.path["id"]
    path = f"projects/{call.path['project']}/zones/{zone}/disks/{name}"
    if (kind := disks.type_of(call.cloud, path)) is None:
        raise ApiError(5, f"The resource '{path}' was not found")
    base = f"https://www.googleapis.com/compute/v1/projects/{call.path['project']}/zones/{zone}"
    shown: JsonObject = {
        "kind": "compute#disk",
        "name": name,
        "zone": base,
        "type": f"{base}/diskTypes/{kind}",
        "status": "READY",
        "selfLink": f"{base}/disks/{name}",
    }
    users: list[JsonValue] = [f"{base}/instances/{user}" for user in disks.users_of(call.cloud, path)]
    return {**shown, "users": users} if users else shown


METHODS = [
    Method("compute.projects.get", "GET", "/compute/v1/projects/{project}", _get_project),
    Method("compute.disks.get", "GET", "/compute/v1/projects/{project}/zones/{location}/disks/{id}", _get_disk),
]
