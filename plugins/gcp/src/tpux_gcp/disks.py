"""Data disks (`tpu.data_disks`): how they are named, in which mode each TPU gets them, and what preflight asks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import AfterValidator

from tpux import Finding, Section
from tpux.fields import workers_of
from tpux_gcp.credentials import Place, call, compute_url
from tpux_gcp.errors import CloudError, InvalidConfigError

if TYPE_CHECKING:
    from requests import Response

KEY = "tpu.data_disks"
_URL = re.compile(r"https://[\w.]+/compute/(v1|beta|alpha)/")
_NAME = "[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SOURCE = re.compile(rf"(?:projects/(?P<project>[^/\s]+)/(?P<scope>zones|regions)/(?P<place>[^/\s]+)/disks/)?{_NAME}")
_NEEDS_HYPERDISK = {"v6e"}
"""Generations without Persistent Disk ("Attach durable block storage", Cloud TPU documentation)."""
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
class _Attached:
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
    return [{"sourceDisk": disk.path, "mode": _MODES[disk.mode]} for disk in (_attached(each, host) for each in disks)]


def _attached(each: str | DataDisk, host: Host) -> _Attached:
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
    return _Attached(path, disk.mode or ("read-write" if single else "read-only"))


def check_disks(disks: Sequence[str | DataDisk], place: Place, hosts: Sequence[Host]) -> Iterator[Finding]:
    """Yield what is wrong with the data disks of a config; what cannot be asked is a warning.

    Args:
        disks: `tpu.data_disks`.
        place: the credentials with which Compute Engine is asked.
        hosts: the TPUs that may be requested.
    """
    asked: dict[str, Response | str] = {}
    for host in hosts:
        for disk in disks:
            try:
                attached = _attached(disk, host)
            except InvalidConfigError as error:
                yield Finding("error", error.failure.evidence, KEY, error.failure.hint)
                continue
            new = attached.path not in asked
            if new:
                asked[attached.path] = _get(place, attached.path)
            yield from _check(attached, host, asked[attached.path], new=new)


def _get(place: Place, path: str) -> Response | str:
    """Return the answer about a disk, or why there is none."""
    try:
        return call(place, "GET", compute_url(place, path), params={"fields": "type,users"})
    except CloudError as error:
        return error.problem.message


def _check(disk: _Attached, host: Host, answer: Response | str, *, new: bool) -> Iterator[Finding]:
    if isinstance(answer, str) or (not answer.ok and answer.status_code != 404):
        why = answer if isinstance(answer, str) else f"HTTP status {answer.status_code}"
        if new:
            yield Finding("warning", f"the disk {disk.path} is not checked: {why}", KEY)
        return
    if not answer.ok:
        if new:
            hint = "`gcloud compute disks list` shows the disks of the project"
            yield Finding("error", f"there is no disk {disk.path}", KEY, hint)
        return
    try:
        message = answer.json()
        kind, users = str(message.get("type") or "").rpartition("/")[2], list(message.get("users") or [])
    except (ValueError, AttributeError, TypeError):
        kind, users = "", []
    generation = host.accelerator.partition("-")[0]
    if generation in _NEEDS_HYPERDISK and kind and not kind.startswith("hyperdisk-"):
        text = f"the disk {disk.path} is a {kind}, and {generation} takes Hyperdisk only"
        yield Finding("error", text, KEY, "create a disk of type hyperdisk-balanced or hyperdisk-ml")
    elif users and disk.mode == "read-write" and new:
        who = ", ".join(str(user).rpartition("/")[2] for user in users)
        text = f"the disk {disk.path} is attached to {who}: read-write, it can be attached to one VM at a time"
        yield Finding("warning", text, KEY, "the creation is refused as long as it is")
    elif new:
        yield Finding("ok", f"the disk {disk.path} is attached {disk.mode}", KEY)
