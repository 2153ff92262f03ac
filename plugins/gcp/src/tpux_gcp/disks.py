"""Data disks (`tpu.data_disks`): how they are named, and in which mode each TPU gets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from pydantic import AfterValidator

from tpux import Section
from tpux.fields import workers_of
from tpux_gcp.errors import InvalidConfigError

_URL = re.compile(r"https://[\w.]+/compute/(v1|beta|alpha)/")
_NAME = "[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SOURCE = re.compile(rf"(?:projects/(?P<project>[^/\s]+)/(?P<scope>zones|regions)/(?P<place>[^/\s]+)/disks/)?{_NAME}")
_MODES = {"read-write": "READ_WRITE", "read-only": "READ_ONLY"}


def _known_form(source: str) -> str:
    plain = _URL.sub("", source, count=1)
    if not _SOURCE.fullmatch(plain):
        raise ValueError(f"{source!r} is no disk: give its name, or projects/P/zones/ZONE/disks/NAME")
    return plain


Disk = Annotated[str, AfterValidator(_known_form)]


class DataDisk(Section):
    """An existing disk of Compute Engine."""

    source: Disk
    """The disk: a name, which means the one in the TPU's zone, or projects/P/zones/ZONE/disks/NAME."""
    mode: Literal["read-write", "read-only"] | None = None
    """read-write is possible with a single worker, and the default there; with several workers it is read-only."""


@dataclass(frozen=True)
class AttachedDisk:
    """A disk as a TPU in a zone gets it."""

    path: str
    mode: str


@dataclass(frozen=True)
class Host:
    """What gets the disks.

    Attributes:
        accelerator: its type.
        zone: where it is.
        slices: how many.
        project: of disks that are given by name.
    """

    accelerator: str
    zone: str
    slices: int
    project: str


def disk_messages(disks: Sequence[str | DataDisk], host: Host) -> list[dict[str, str]]:
    """Return the disks of a node (`google.cloud.tpu.v2.AttachedDisk`).

    Args:
        disks: `tpu.data_disks`.
        host: the TPU.

    Raises:
        InvalidConfigError: a disk cannot be attached to this TPU.
    """
    return [
        {"sourceDisk": disk.path, "mode": _MODES[disk.mode]} for disk in (attached_disk(each, host) for each in disks)
    ]


def attached_disk(each: str | DataDisk, host: Host) -> AttachedDisk:
    """Return a disk as a TPU gets it.

    Raises:
        InvalidConfigError: it cannot be attached to this TPU.
    """
    disk = DataDisk(source=each) if isinstance(each, str) else each
    parts = cast("re.Match[str]", _SOURCE.fullmatch(disk.source))
    zone, place = host.zone, parts["place"]
    if place and place not in {zone, zone.rpartition("-")[0]}:
        message = f"the disk {disk.source} is not in {zone}, one of the zones of tpu.zone"
        hint = f"set tpu.zone: {place}, or give a name, which means a disk of that name in each zone"
        raise InvalidConfigError(message, hint if parts["scope"] == "zones" else "use zones of its region")
    single = host.slices == 1 and workers_of(host.accelerator) == 1
    if disk.mode == "read-write" and not single:
        what = f"{host.slices} slices" if host.slices > 1 else host.accelerator
        message = f"the disk {disk.source} is read-write, and {what} has several workers"
        raise InvalidConfigError(message, "several workers can only read a disk: mode: read-only")
    path = disk.source if place else f"projects/{host.project}/zones/{zone}/disks/{disk.source}"
    return AttachedDisk(path, disk.mode or ("read-write" if single else "read-only"))
