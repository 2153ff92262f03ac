"""Copy a checkpoint to another bucket: what is there already is left, and each object is compared with its source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpux import TpuxError, UsageError, plain_reason
from tpux_storage.checkpoints import Checkpoint

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CHECKSUMS = ("crc32c", "md5Hash")
"""Keys of an entry of gcsfs: two objects with the same value have the same content."""
BLOCK = 8 * 1024 * 1024
GIB = 1024**3
BETWEEN_REGIONS = {frozenset({"us"}): 0.02, frozenset({"europe"}): 0.02, frozenset({"us", "europe"}): 0.05}
"""Google's list price of a GiB between two locations of Cloud Storage, in USD, by their continents."""
ELSEWHERE = 0.08, 0.14
"""The same of other continents, from and to."""
PRICES_FROM = "https://cloud.google.com/storage/pricing#network"


def copy_checkpoint(
    source: AbstractFileSystem,
    target: AbstractFileSystem,
    checkpoint: Checkpoint,
    directory: str,
    note: Callable[[str], None],
) -> tuple[int, int]:
    """Copy the objects that are not there yet, the one that makes the checkpoint complete last.

    Args:
        source: the file system of the checkpoint.
        target: that of the copy; the same object if both are of one kind, which then copies by itself.
        checkpoint: what to copy.
        directory: the path of the copy.
        note: called with each object that was copied.

    Returns:
        How many objects were copied, and how many were there.

    Raises:
        TpuxError: an object was not copied, or differs from its source.
    """
    copied = there = 0
    for path in checkpoint.objects_marker_last:
        to = directory + path.removeprefix(checkpoint.path)
        if _is_same(source, path, target, to):
            there += 1
            continue
        try:
            if source is target:
                source.cp_file(path, to)
            else:
                _stream(source, path, target, to)
        except Exception as error:  # a library's
            hint = "the same command copies what is missing"
            raise TpuxError(f"cannot copy {path}: {plain_reason(error)[:300]}", hint=hint) from error
        if not _is_same(source, path, target, to):
            raise TpuxError(f"the copy {to} differs from {path}", hint="the same command copies it again")
        copied += 1
        note(f"copied {path} ({checkpoint.objects[path]} bytes)")
    return copied, there


def require_no_other(
    source: AbstractFileSystem, target: AbstractFileSystem, checkpoint: Checkpoint, directory: str
) -> None:
    """Require that a copy would not be mixed with another checkpoint of the same name, and that none is replaced.

    Args:
        source: the file system of the checkpoint.
        target: that of the copy.
        checkpoint: what to copy.
        directory: the path of the copy.

    Raises:
        UsageError: another one is there.
        TpuxError: the storage does not answer.
    """
    try:
        target.invalidate_cache()
        other = _describe_other(source, target, checkpoint, directory)
    except Exception as error:  # a library's
        raise TpuxError(f"cannot look at {directory}: {plain_reason(error)[:300]}") from error
    if other:
        raise UsageError(other, hint="copy it to another URL, or delete what is there")


def _describe_other(
    source: AbstractFileSystem, target: AbstractFileSystem, checkpoint: Checkpoint, directory: str
) -> str:
    wanted = {directory + path.removeprefix(checkpoint.path): path for path in checkpoint.objects}
    there = {str(path) for path in target.find(directory)}
    there = {path for path in there if path == directory or path.startswith(f"{directory}/")}
    if more := sorted(there - wanted.keys()):
        return f"{directory} has objects that the checkpoint has not, such as {more[0]}"
    # Without its marker it is a copy that was cut off, which nothing takes for a checkpoint: the copy completes it.
    if directory + checkpoint.marker.removeprefix(checkpoint.path) not in there:
        return ""
    differ = (to for to, path in wanted.items() if not _is_same(source, path, target, to))
    to = next(differ, None)
    return f"{directory} is another checkpoint: {to} differs or is missing" if to else ""


def describe_price(size: int, start: str, end: str) -> str:
    """Return what the traffic between two locations costs, for people.

    Args:
        size: bytes.
        start: the location of the source's bucket, such as US-CENTRAL2; "" if it is unknown.
        end: that of the target's.
    """
    if not start or not end:
        return f"the price of the traffic is unknown: so are the buckets' locations ({PRICES_FROM})"
    if start.lower() == end.lower():
        return f"traffic within {start.lower()} is free"
    between = f"from {start.lower()} to {end.lower()}"
    ends = frozenset(place.lower().partition("-")[0].replace("eu", "europe", 1)[:8] for place in (start, end))
    ends = frozenset("europe" if place.startswith("eu") else place for place in ends)
    if (price := BETWEEN_REGIONS.get(ends)) is not None:
        return f"the traffic {between} costs about {price * size / GIB:.2f} USD ({PRICES_FROM})"
    low, high = (price * size / GIB for price in ELSEWHERE)
    return f"the traffic {between} costs about {low:.2f} to {high:.2f} USD ({PRICES_FROM})"


def location_of(storage: AbstractFileSystem, path: str) -> str:
    """Return the location of a bucket of Cloud Storage; "" if it is unknown."""
    call = getattr(storage, "call", None)
    if call is None:
        return ""
    try:
        return str(call("GET", "b/{}", path.partition("/")[0], json_out=True).get("location") or "")
    except Exception:  # noqa: BLE001  (the role may not include buckets.get)
        return ""


def _is_same(source: AbstractFileSystem, path: str, target: AbstractFileSystem, to: str) -> bool:
    target.invalidate_cache()
    try:
        copy = target.info(to)
    except FileNotFoundError:
        return False
    original = source.info(path)
    if copy["type"] != "file" or copy["size"] != original["size"]:
        return False
    for key in CHECKSUMS:
        if original.get(key) and copy.get(key):
            return bool(original[key] == copy[key])
    return _digest(source, path) == _digest(target, to)


def _digest(storage: AbstractFileSystem, path: str) -> bytes:
    found = hashlib.sha256()
    with storage.open(path, "rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.digest()


def _stream(source: AbstractFileSystem, path: str, target: AbstractFileSystem, to: str) -> None:
    with source.open(path, "rb") as read, target.open(to, "wb") as write:
        while block := read.read(BLOCK):
            write.write(block)
