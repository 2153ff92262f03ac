"""What preflight asks Compute Engine about the data disks of a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpux import Finding
from tpux_gcp.credentials import Place, call, compute_url
from tpux_gcp.disks import AttachedDisk, DataDisk, Host, attached_disk
from tpux_gcp.errors import CloudError, InvalidConfigError

if TYPE_CHECKING:
    from requests import Response

KEY = "tpu.data_disks"
_NEEDS_HYPERDISK = {"v6e"}
"""Generations without Persistent Disk ("Attach durable block storage", Cloud TPU documentation)."""


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
                attached = attached_disk(disk, host)
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


def _check(disk: AttachedDisk, host: Host, answer: Response | str, *, new: bool) -> Iterator[Finding]:
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
