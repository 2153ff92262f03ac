"""The Compute Engine API's method that gcloud's `tpu-vm ssh` and `scp` call: projects.get."""

from __future__ import annotations

import hashlib
import json

from tpux_emulator.api.call import Call, Method
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


METHODS = [Method("compute.projects.get", "GET", "/compute/v1/projects/{project}", _get_project)]
