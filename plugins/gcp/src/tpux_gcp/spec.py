"""What is sent to the API to create a TPU, the messages for nodes and queued resources, and checks of its values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tpux_gcp.errors import InvalidConfigError
from tpux_gcp.labels import MAX_NAME, NAME, build_labels
from tpux_gcp.resource import Location, TpuResource
from tpux_gcp.unattended import startup_script

if TYPE_CHECKING:
    from tpux import ProvisionRequest, TpuSection
    from tpux_gcp.section import GcpTpuSection

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
_SIZE_IN_CHIPS = {"v5litepod", "v6e"}  # in other generations the number counts cores, two per chip
_CONFIG_TYPE = {"v5litepod": "V5LITE_POD"}  # AcceleratorConfig.Type, else the generation in capitals
ANY_RESERVATION = "-"
STARTUP_SCRIPT, SSH_KEYS, OS_LOGIN = "startup-script", "ssh-keys", "enable-oslogin"
GUEST_ATTRIBUTES = "enable-guest-attributes"
MAX_TAGS = 64
MAX_RUN = 7 * 24 * 3600.0
"""The longest run of Flex-start ("Request Cloud TPUs using Flex-start", Cloud TPU documentation)."""
# "Set custom metadata", Compute Engine documentation.
_METADATA_KEY = re.compile(r"[-_A-Za-z0-9]{1,128}")
# The REST reference of queuedResources has the form with a location, the guide to shared reservations the other one.
_RESERVATION = re.compile(r"(projects/[^/\s]+/(locations/[^/\s]+/)?reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?|-)")
# A part of what `useradd` of Google's images accepts; 32 is the limit of Linux.
_USER = re.compile(r"[A-Za-z0-9_][-._A-Za-z0-9]{0,31}")


@dataclass(frozen=True)
class Candidate:
    """A combination of accelerator and zone to request."""

    accelerator: str
    zone: str

    def __str__(self) -> str:
        return f"{self.accelerator} in {self.zone}"


def section_of(tpu: TpuSection) -> GcpTpuSection:
    """Return the section `tpu` of a job as this plugin's model, with which core has validated it."""
    return cast("GcpTpuSection", tpu)


def check_existing(
    tpu: GcpTpuSection, name: str, candidates: Sequence[Candidate], zone: str, resource: TpuResource
) -> None:
    """Check that an existing TPU is of a type, and has the number of slices and the version, that the config asks for.

    Args:
        tpu: the config's section.
        name: the TPU's name.
        candidates: the accelerators and zones of the config.
        zone: the TPU's zone.
        resource: the TPU.

    Raises:
        InvalidConfigError: it is of another type or version, or has another number of slices.
    """
    wanted = list(dict.fromkeys(candidate.accelerator for candidate in candidates if candidate.zone == zone))
    existing, slices = resource.accelerator, len(resource.nodes)
    if existing and existing not in wanted:
        raise InvalidConfigError(
            f"TPU {name} in {zone} is a {existing}, and tpu.accelerator is {' or '.join(wanted)}",
            f"set tpu.accelerator: {existing} to use it, or choose another tpu.name",
        )
    if resource.status == "ready" and slices != tpu.node_count:
        raise InvalidConfigError(
            f"TPU {name} in {zone} has {slices} slice(s), and tpu.node_count is {tpu.node_count}",
            f"set tpu.node_count: {slices} to use it, or choose another tpu.name",
        )
    versions = {node.version for node in resource.nodes if node.version}
    if tpu.version and versions - {tpu.version}:
        version = min(versions - {tpu.version})
        raise InvalidConfigError(
            f"TPU {name} in {zone} has the version {version}, and tpu.version is {tpu.version}",
            f"set tpu.version: {version}, or leave it out, to use it, or choose another tpu.name",
        )


def check_values(tpu: GcpTpuSection, public_keys: Iterable[str]) -> None:
    """Check network tags, metadata keys and the users of public keys against the rules of Compute Engine.

    Args:
        tpu: the config's section.
        public_keys: `USER:KEY` each.

    Raises:
        InvalidConfigError: one of them is invalid.
    """
    for tag in tpu.tags:
        if not NAME.fullmatch(tag):
            raise InvalidConfigError(
                f"invalid tag {tag!r} in tpu.tags",
                f"use at most {MAX_NAME} lower-case letters, digits and hyphens; start with a letter",
            )
    if len(tpu.tags) > MAX_TAGS:
        raise InvalidConfigError(f"tpu.tags has {len(tpu.tags)} tags", f"a VM has at most {MAX_TAGS}")
    if tpu.reservation is not None and not _RESERVATION.fullmatch(tpu.reservation):
        raise InvalidConfigError(
            f"invalid reservation {tpu.reservation!r} in tpu.reservation",
            "give its name, projects/P/locations/ZONE/reservations/NAME, or projects/OWNER/reservations/NAME",
        )
    _check_flex_start(tpu)
    for key in tpu.metadata:
        if not _METADATA_KEY.fullmatch(key):
            raise InvalidConfigError(
                f"invalid key {key!r} in tpu.metadata", "use at most 128 letters, digits, hyphens and underscores"
            )
    for user in (line.partition(":")[0] for line in public_keys):
        if not _USER.fullmatch(user):
            hint = "set job.remote_user to at most 32 letters, digits and . _ -"
            raise InvalidConfigError(f"invalid user {user!r} for the login on the workers", hint)


def _check_flex_start(tpu: GcpTpuSection) -> None:
    if not tpu.flex_start:
        if tpu.max_run_duration is not None:
            raise InvalidConfigError("tpu.max_run_duration is of Flex-start only", "set tpu.flex_start: true")
        return
    if tpu.max_run_duration is None or not 1 <= tpu.max_run_duration <= MAX_RUN:
        raise InvalidConfigError("tpu.flex_start needs tpu.max_run_duration", "for example 24h; at most 7d")
    if tpu.pricing != "ondemand" or tpu.reservation:
        raise InvalidConfigError(
            "tpu.flex_start is neither spot nor reserved", "remove tpu.pricing and tpu.reservation"
        )
    if tpu.allocation_mode == "tpu-vm" and tpu.node_count == 1:
        message = "tpu.flex_start needs a queued resource"
        raise InvalidConfigError(message, "set tpu.allocation_mode: queued-resources")


def check_login(public_keys: Iterable[str]) -> None:
    """Check that nobody is to log in as root, which Google's images refuse.

    Raises:
        InvalidConfigError: a public key is root's.
    """
    if any(line.startswith("root:") for line in public_keys):
        raise InvalidConfigError(
            "the login on the workers is root, which Google's images refuse", "set job.remote_user to another name"
        )


def runtime_version(tpu: GcpTpuSection, accelerator: str) -> str:
    """Return the runtime version: the config's, or the default of the TPU generation."""
    return tpu.version or _DEFAULT_VERSION[accelerator.partition("-")[0]]


def node_message(request: ProvisionRequest, candidate: Candidate, *, queued: bool) -> Message:
    """Return a node (`google.cloud.tpu.v2.Node`).

    Args:
        request: the job's request.
        candidate: accelerator and zone.
        queued: the node is part of a queued resource, which carries the scheduling options for all its nodes.

    Raises:
        InvalidConfigError: the API does not accept a value of the config.
    """
    tpu = section_of(request.tpu)
    message: Message = {
        **accelerator_fields(tpu, candidate.accelerator),
        "runtimeVersion": runtime_version(tpu, candidate.accelerator),
        "networkConfig": _network(tpu),
        "labels": build_labels(tpu.labels, request.labels),
        "metadata": vm_metadata(request),
        "tags": list(tpu.tags),
    }
    account: Message = {"email": tpu.service_account} if tpu.service_account else {}
    if tpu.scopes:
        account["scope"] = list(tpu.scopes)
    if account:
        message["serviceAccount"] = account
    if tpu.description:
        message["description"] = tpu.description
    if tpu.autocheckpoint:
        message["autocheckpointEnabled"] = True
    if tpu.secure_boot:
        message["shieldedInstanceConfig"] = {"enableSecureBoot": True}
    if tpu.data_disks:
        from tpux_gcp.disks import Host, disk_messages  # which `tpux tpu --help` does not need, nor pydantic

        project = str(request.resolved.get("project") or "")
        host = Host(candidate.accelerator, candidate.zone, tpu.node_count, project)
        message["dataDisks"] = disk_messages(tpu.data_disks, host)
    if not queued:
        flags = {
            "spot": tpu.pricing == "spot",
            "preemptible": tpu.pricing == "preemptible",
            "reserved": tpu.reservation is not None,
        }
        message["schedulingConfig"] = {name: True for name, chosen in flags.items() if chosen}
    return message


def queued_resource_message(request: ProvisionRequest, candidate: Candidate, location: Location, name: str) -> Message:
    """Return a queued resource (`google.cloud.tpu.v2.QueuedResource`) for one node or several slices.

    The API v2 has no tier for preemptible TPUs (v2alpha1's was `bestEffort`): they are requested as spot.
    """
    tpu = section_of(request.tpu)
    node_spec: Message = {"parent": location.parent, "node": node_message(request, candidate, queued=True)}
    if tpu.node_count > 1:
        node_spec["multiNodeParams" if tpu.autocheckpoint or tpu.flex_start else "multisliceParams"] = {
            "nodeCount": tpu.node_count,
            "nodeIdPrefix": name,
        }
    else:
        node_spec["nodeId"] = name
    message: Message = {"tpu": {"nodeSpec": [node_spec]}}
    if tpu.flex_start and tpu.max_run_duration is not None:
        message["provisioningModel"] = "FLEX_START"
        message["runDuration"] = {"maxRunDuration": f"{round(tpu.max_run_duration)}s"}
    if tpu.pricing != "ondemand":
        message["spot"] = {}
    elif tpu.reservation:
        message["guaranteed"] = {}
    if reservation := tpu.reservation:
        full_name = reservation if "/" in reservation else f"{location.parent}/reservations/{reservation}"
        message["reservationName"] = full_name
    if tpu.valid_until is not None:
        message["queueingPolicy"] = {"validUntilDuration": f"{round(tpu.valid_until)}s"}
    return message


def vm_metadata(request: ProvisionRequest) -> dict[str, str]:
    """Return the metadata of the VMs: the config's, the startup script with the watchdog, and the public keys.

    Raises:
        InvalidConfigError: the startup script is set twice.
    """
    tpu = section_of(request.tpu)
    metadata = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in tpu.metadata.items()}
    if tpu.startup_script is not None:
        if STARTUP_SCRIPT in metadata:
            raise InvalidConfigError(
                "tpu.startup_script and tpu.metadata.startup-script are both set", "remove one of them"
            )
        metadata[STARTUP_SCRIPT] = tpu.startup_script.read_text(encoding="utf-8")
    if request.public_keys and not os_login_enabled(metadata):
        metadata = add_ssh_keys(metadata, request.public_keys)
    if script := startup_script(request, tpu, metadata.get(STARTUP_SCRIPT, "")):
        metadata[STARTUP_SCRIPT] = script
    # VMs publish their host keys as guest attributes ("Guest attributes", Compute Engine documentation).
    return {GUEST_ATTRIBUTES: "TRUE", **metadata}


def os_login_enabled(metadata: Mapping[str, object]) -> bool | None:
    """Return whether metadata enable OS Login; None if they do not say so."""
    value = metadata.get(OS_LOGIN)
    return None if value is None else str(value).lower() in {"true", "1", "y", "yes"}


def add_ssh_keys(metadata: dict[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    """Return the metadata with these public keys (`USER:KEY`) added to `ssh-keys`."""
    lines = metadata.get(SSH_KEYS, "").splitlines()
    return {**metadata, SSH_KEYS: "\n".join([*lines, *(key for key in keys if key not in lines)])}


def accelerator_fields(tpu: GcpTpuSection, accelerator: str) -> Message:
    """Return the fields of a node that name its accelerator: the type, or generation and topology.

    Raises:
        InvalidConfigError: `tpu.topology` is not one of that accelerator.
    """
    if tpu.topology is None:
        return {"acceleratorType": accelerator}
    generation, _, size = accelerator.partition("-")
    chips = int(size) // (1 if generation in _SIZE_IN_CHIPS else 2)
    sides = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?", tpu.topology)
    if sides is None or math.prod(int(side or 1) for side in sides.groups()) != chips:
        hint = f"the product of the sides is the number of chips, {chips} for {accelerator}"
        raise InvalidConfigError(f"tpu.topology {tpu.topology!r} is not one of {accelerator}", hint)
    return {"acceleratorConfig": {"type": _CONFIG_TYPE.get(generation, generation.upper()), "topology": tpu.topology}}


def _network(tpu: GcpTpuSection) -> Message:
    message: Message = {"network": tpu.network or "default"}
    if not tpu.internal_ips:
        message["enableExternalIps"] = True
    if tpu.subnetwork:
        message["subnetwork"] = tpu.subnetwork
        if not tpu.network:
            del message["network"]  # a subnetwork belongs to exactly one network
    return message
