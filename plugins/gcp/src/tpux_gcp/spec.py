"""What is asked of the API for a job: a node, or a queued resource with its nodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux import UsageError, workers_of
from tpux_gcp import project as where
from tpux_gcp.errors import mistake
from tpux_gcp.labels import labels
from tpux_gcp.resource import Place
from tpux_gcp.validation import node_id

if TYPE_CHECKING:
    from tpux import Request, TpuSection
    from tpux_gcp.api import Api

_log = logging.getLogger(__name__)

Message = dict[str, object]
# "TPU software versions", Cloud TPU documentation.
_DEFAULT_VERSION = {
    "v6e": "v2-alpha-tpuv6e",
    "v5p": "v2-alpha-tpuv5",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v4": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v2": "tpu-ubuntu2204-base",
}
ANY_RESERVATION = "-"
STARTUP_SCRIPT, SSH_KEYS, OS_LOGIN = "startup-script", "ssh-keys", "enable-oslogin"
GUEST_ATTRIBUTES = "enable-guest-attributes"
COMPUTE = "https://compute.googleapis.com"
TIMEOUT = 10.0


@dataclass(frozen=True)
class Candidate:
    """One combination of accelerator and zone that may be asked for."""

    accelerator: str
    zone: str

    def __str__(self) -> str:
        return f"{self.accelerator} in {self.zone}"


def candidates(tpu: TpuSection) -> list[Candidate]:
    """All combinations in the order in which they are tried: each accelerator in all zones, then the next one.

    Raises:
        RefusedError: there is no zone, no accelerator, or no such accelerator.
    """
    accelerators = _list(tpu.accelerator)
    zones = _list(tpu.zone) or _list(where.zone())
    if not accelerators:
        raise mistake("there is no tpu.accelerator", "such as tpu.accelerator: v4-32")
    if not zones:
        raise mistake("there is no tpu.zone", "such as tpu.zone: us-central2-b; `tpux tpu types` shows who has what")
    for accelerator in accelerators:
        try:
            workers_of(accelerator)
        except UsageError as error:
            raise mistake(error.message, error.hint) from error
    return list(dict.fromkeys(Candidate(accelerator, zone) for accelerator in accelerators for zone in zones))


def version_of(tpu: TpuSection, accelerator: str) -> str:
    """The runtime version: the config's, or the one for TPUs of that generation."""
    return tpu.version or _DEFAULT_VERSION[accelerator.partition("-")[0]]


def node(request: Request, candidate: Candidate, *, queued: bool) -> Message:
    """A node (`google.cloud.tpu.v2.Node`).

    Raises:
        RefusedError: something in the config is not to be had in this API.
    """
    tpu = request.tpu
    message: Message = {
        "accelerator_type": candidate.accelerator,
        "runtime_version": version_of(tpu, candidate.accelerator),
        "network_config": _network(tpu),
        "labels": labels(request),
        "metadata": metadata(request),
        "tags": list(tpu.tags),
    }
    if tpu.service_account:
        message["service_account"] = {"email": tpu.service_account}
    if not queued:  # a queued resource says it for all its nodes
        message["scheduling_config"] = {
            "spot": tpu.pricing == "spot",
            "preemptible": tpu.pricing == "preemptible",
            "reserved": tpu.reservation is not None,
        }
    return message


def queued(request: Request, candidate: Candidate, place: Place) -> Message:
    """A queued resource (`google.cloud.tpu.v2.QueuedResource`), of one node or of several slices.

    The API v2 has no tier for preemptible TPUs (v2alpha1's was `bestEffort`): they are asked for as spot.
    """
    tpu, name = request.tpu, node_id(request)
    spec: Message = {"parent": place.parent, "node": node(request, candidate, queued=True)}
    if tpu.node_count > 1:
        spec["multislice_params"] = {"node_count": tpu.node_count, "node_id_prefix": name}
    else:
        spec["node_id"] = name
    message: Message = {"tpu": {"node_spec": [spec]}}
    if tpu.pricing != "ondemand":
        message["spot"] = {}
    elif tpu.reservation:
        message["guaranteed"] = {}
    if tpu.reservation:
        name = tpu.reservation
        message["reservation_name"] = name if "/" in name else f"{place.parent}/reservations/{name}"
    if tpu.valid_until is not None:
        message["queueing_policy"] = {"valid_until_duration": {"seconds": round(tpu.valid_until)}}
    return message


def metadata(request: Request) -> dict[str, str]:
    """The metadata of the VMs: the config's, the startup script, and the public keys.

    Raises:
        RefusedError: two keys of the config say the same thing, or OS Login is demanded.
    """
    tpu = request.tpu
    given = {key: _text(value) for key, value in tpu.metadata.items()}
    if tpu.startup_script is not None:
        if STARTUP_SCRIPT in given:
            raise mistake("tpu.startup_script and tpu.metadata.startup-script are both given", "keep one of them")
        given[STARTUP_SCRIPT] = tpu.startup_script.read_text(encoding="utf-8")
    if request.public_keys:
        refuse_os_login(given, "tpu.metadata")
        given = with_keys(given, request.public_keys)
    # Guest attributes are where a VM publishes its host keys ("Guest attributes", Compute Engine documentation).
    return {GUEST_ATTRIBUTES: "TRUE", **given}


def with_keys(given: dict[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    """Metadata with these public keys (`USER:KEY`) among its ssh-keys."""
    lines = given.get(SSH_KEYS, "").splitlines()
    return {**given, SSH_KEYS: "\n".join([*lines, *(key for key in keys if key not in lines)])}


def refuse_os_login(given: dict[str, str], where: str) -> None:
    """Refuse metadata that demands OS Login, under which VMs do not look at their ssh-keys.

    Raises:
        RefusedError: it does.
    """
    if given.get(OS_LOGIN, "").lower() in {"true", "1", "y", "yes"}:
        raise mistake(
            f"{where} demands OS Login ({OS_LOGIN}), which tpux cannot log in with yet",
            f"set tpu.metadata.{OS_LOGIN}: 'FALSE' for this TPU, if the organisation allows it",
        )


def refuse_project_os_login(api: Api, tpu: TpuSection) -> None:
    """Refuse a project whose common instance metadata demand OS Login, unless the config's metadata say otherwise.

    It is the call that `gcloud compute tpus tpu-vm ssh` makes first (compute.projects.get). Who may not make
    it is not told anything: then a worker that refuses the key says so.

    Raises:
        RefusedError: it does.
        CloudError: there are no credentials.
    """
    if OS_LOGIN in tpu.metadata:
        return
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    url = f"{api.endpoint or COMPUTE}/compute/v1/projects/{api.project}"
    try:
        with AuthorizedSession(where.credentials(api.endpoint)) as session:  # type: ignore[no-untyped-call]
            answer = session.get(url, params={"fields": "commonInstanceMetadata"}, timeout=TIMEOUT)
            items = answer.json().get("commonInstanceMetadata", {}).get("items", []) if answer.ok else []
        metadata = {str(item["key"]): str(item["value"]) for item in items}
    except (GoogleAuthError, RequestException, ValueError, KeyError, TypeError) as error:
        _log.info("whether project %s demands OS Login could not be seen: %s", api.project, error)
        return
    refuse_os_login(metadata, f"project {api.project}")


def _network(tpu: TpuSection) -> Message:
    message: Message = {"network": tpu.network or "default", "enable_external_ips": not tpu.internal_ips}
    if tpu.subnetwork:
        message["subnetwork"] = tpu.subnetwork
        if not tpu.network:
            del message["network"]  # the subnetwork says which
    return message


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or [])
