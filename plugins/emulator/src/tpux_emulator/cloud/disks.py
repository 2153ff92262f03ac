"""Data disks: which exist, and which nodes may get them ("Attach durable block storage", Cloud TPU documentation)."""

from __future__ import annotations

import re

from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.errors import ApiError, invalid, precondition
from tpux_emulator.messages import AttachedDisk, DiskMode, Node, NodeState

_SOURCE = re.compile(r"projects/[^/]+/(zones|regions)/(?P<place>[^/]+)/disks/[^/]+")
_URL = re.compile(r"https://[^/]+/compute/(v1|beta|alpha)/")
_ANY_TYPE = "hyperdisk-balanced"
_FIELD = "node.data_disks"
_WITHOUT_PERSISTENT_DISK = {"v6e"}
_WITHOUT_MACHINES = (NodeState.PREEMPTED, NodeState.TERMINATED)


def type_of(cloud: Cloud, path: str) -> str | None:
    """Return the type of a disk, None if it does not exist."""
    known = cloud.settings.disks
    return _ANY_TYPE if known is None else known.get(path)


def users_of(cloud: Cloud, path: str) -> dict[str, DiskMode]:
    """Return the names of the VMs that have a disk attached, and how."""
    return {
        worker.hostname: _mode(disk)
        for record in cloud.nodes.values()
        if record.state not in _WITHOUT_MACHINES
        for disk in record.spec.data_disks or []
        if _path(disk) == path
        for worker in record.workers
    }


def check(cloud: Cloud, zone: str, spec: Node, accelerator_type: str, *, slices: int = 1) -> None:
    """Check that a node may be requested with its data disks.

    Args:
        cloud: the cloud.
        zone: of the node.
        spec: the node.
        accelerator_type: its type.
        slices: how many nodes like this are requested.

    Raises:
        ApiError: 400 for a disk of another place or type, or one to be written to by several hosts; 404 for none.
    """
    hosts = cloud.catalog.workers(accelerator_type) * slices
    for disk in spec.data_disks or []:
        path = _path(disk)
        found = _SOURCE.fullmatch(path)
        if found is None:
            raise invalid(f"Invalid value for field 'source_disk': '{path}'.", _FIELD)
        if found["place"] not in {zone, zone.rpartition("-")[0]}:
            raise invalid(f"Disk '{path}' must be in the zone of the node, '{zone}'.", _FIELD)
        if _mode(disk) is DiskMode.READ_WRITE and hosts > 1:
            raise invalid(f"Disk '{path}' can be attached to {hosts} hosts in READ_ONLY mode only.", _FIELD)
        kind = type_of(cloud, path)
        if kind is None:
            raise ApiError(5, f"The resource '{path}' was not found")
        generation = cloud.catalog.generation(accelerator_type)
        if generation in _WITHOUT_PERSISTENT_DISK and not kind.startswith("hyperdisk-"):
            raise invalid(f"[{generation}] does not support the disk type '{kind}' of '{path}'.", _FIELD)


def require_detached(cloud: Cloud, spec: Node) -> None:
    """Check that no other VM has the disks attached in a way that excludes this node.

    Raises:
        ApiError: 400, with the text of Compute Engine.
    """
    for disk in spec.data_disks or []:
        for user, mode in users_of(cloud, path := _path(disk)).items():
            if DiskMode.READ_WRITE in {mode, _mode(disk)}:
                raise precondition(f"The disk resource '{path}' is already being used by '{user}'")


def _path(disk: AttachedDisk) -> str:
    return _URL.sub("", disk.source_disk or "", count=1)


def _mode(disk: AttachedDisk) -> DiskMode:
    return disk.mode if disk.mode in {DiskMode.READ_ONLY, DiskMode.READ_WRITE} else DiskMode.READ_WRITE
