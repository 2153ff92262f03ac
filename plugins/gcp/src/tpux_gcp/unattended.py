"""`tpu.release_if_unattended`: TPUs that delete themselves if the supervisor's machine is gone and nobody notices.

The VMs get `watchdog.py` in front of the startup script that the config gives them. It uses their own service account.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from tpux import Finding, ProvisionRequest
from tpux.api.machines import clock_rate
from tpux_gcp.credentials import Place, call, is_google
from tpux_gcp.errors import CloudError
from tpux_gcp.labels import owner_labels

if TYPE_CHECKING:
    from tpux_gcp.section import GcpTpuSection

WATCHDOG = (files("tpux_gcp") / "watchdog.py").read_text()
BY_DEFAULT = 24 * 3600.0
"""Seconds, for TPUs on demand. Spot TPUs do not live long, and cost less."""
KEY = "tpu.release_if_unattended"
_OWNER = ("tpux-store", "tpux-job", "tpux-token")
_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com/v1/projects"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The only OAuth scope with which the TPU API accepts a call."""
_MAY_DELETE = {"roles/owner", "roles/editor", "roles/tpu.admin"}
"""The predefined roles with the permissions tpu.nodes.delete and tpu.queuedresources.delete ("Cloud TPU roles")."""


def release_after(tpu: GcpTpuSection) -> float:
    """Return the seconds after which an unattended TPU deletes itself; 0 for never."""
    if tpu.release_if_unattended is not None:
        return tpu.release_if_unattended
    return BY_DEFAULT if tpu.pricing == "ondemand" and tpu.release != "never" else 0.0


def startup_script(request: ProvisionRequest, tpu: GcpTpuSection, configured: str) -> str:
    """Return the startup script of a new TPU: one that starts the watchdog, then the config's.

    Args:
        request: the job's request.
        tpu: the config's section.
        configured: the config's startup script, "" for none.
    """
    if not (seconds := release_after(tpu)):
        return configured
    labels = owner_labels(request.labels)
    settings = {
        "endpoint": Place.from_json(request.resolved).endpoint,
        "seconds": seconds / clock_rate(),
        "slices": tpu.node_count,
        "labels": {key: labels[key] for key in _OWNER if key in labels},
    }
    start = f'setsid python3 "$tpux_directory/watchdog.py" {shlex.quote(json.dumps(settings))}'
    lines = [
        "#!/bin/bash",
        f"# tpux: {KEY}",
        "tpux_directory=$(mktemp -d)",
        *_write("watchdog.py", WATCHDOG),
        f'{start} </dev/null >"$tpux_directory/log" 2>&1 &',
    ]
    if configured:  # as Google's agent runs it: with its own interpreter line, or in bash
        path = '"$tpux_directory/startup-script"'
        lines += [*_write("startup-script", configured), f"chmod +x {path}", f"exec /bin/bash -c {path}"]
    return "\n".join(lines) + "\n"


def _write(name: str, text: str) -> list[str]:
    """Return lines of a shell script that write a file; they end with a word that the text does not contain."""
    end = f"TPUX_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return [f"cat >\"$tpux_directory/{name}\" <<'{end}'", text.removesuffix("\n"), end]


def check(place: Place, tpu: GcpTpuSection) -> Iterator[Finding]:
    """Yield whether the VMs' service account may delete the TPU, as far as that can be known."""
    if not (seconds := release_after(tpu)):
        return
    for key, kept in (("keep_on_failure", tpu.keep_on_failure or 0.0), ("keep_on_stop", tpu.keep_on_stop)):
        if kept > seconds:
            message = f"tpu.{key} is longer than {KEY}: machines that are kept are unattended, unless you are logged in"
            yield Finding("warning", message, KEY, f"set {KEY} to more, or to 0 to turn it off")
    if tpu.scopes and not {SCOPE, "cloud-platform"} & set(tpu.scopes):
        message = "an unattended TPU cannot delete itself: tpu.scopes lacks cloud-platform, which the TPU API requires"
        yield Finding("warning", message, KEY, f"add {SCOPE} to tpu.scopes, or set {KEY}: 0 to turn it off")
        return
    who = tpu.service_account or "the project's default service account"
    unknown = f"not checked whether {who} may delete the TPU"
    grant = f"if unattended TPUs remain, grant it roles/tpu.admin, or set {KEY}: 0"
    if not is_google(place.endpoint):
        yield Finding("note", f"{unknown}: an emulator has no IAM", KEY)
        return
    try:
        roles = _roles(place, tpu.service_account)
    except (CloudError, ValueError, KeyError, TypeError) as error:
        yield Finding("note", f"{unknown}: {error}", KEY, grant)
        return
    if roles & _MAY_DELETE:
        yield Finding("ok", f"{who} may delete the TPU if it is unattended ({min(roles & _MAY_DELETE)})", KEY)
    else:
        message = f"{unknown}: the project grants it none of {', '.join(sorted(_MAY_DELETE))} itself"
        yield Finding("warning", message, KEY, grant)


def _roles(place: Place, account: str | None) -> set[str]:
    """Return the roles that the project's own IAM policy grants a service account.

    Args:
        place: the project and the credentials.
        account: its email address; None for the project's default one.

    Raises:
        CloudError: there are no credentials, or no answer.
        ValueError: the API refuses to say it.
        KeyError, TypeError: its answer is not understood.
    """
    url = f"{_RESOURCE_MANAGER}/{place.project}"
    if not account:
        number = _json(place, "GET", url)["projectNumber"]
        account = f"{number}-compute@developer.gserviceaccount.com"
    bindings = _json(place, "POST", f"{url}:getIamPolicy", json={}).get("bindings", [])
    if not isinstance(bindings, list):
        raise TypeError(f"unexpected bindings: {bindings}")
    return {str(each["role"]) for each in bindings if f"serviceAccount:{account}" in each.get("members", [])}


def _json(place: Place, verb: str, url: str, **options: object) -> dict[str, object]:
    answer = call(place, verb, url, **options)
    if not answer.ok:
        raise ValueError(f"HTTP {answer.status_code}")
    message: dict[str, object] = answer.json()
    return message
