"""Look for checkpoints in a directory of a storage that fsspec opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tpux import TpuxError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_AUTH = re.compile(r"\b(401|403|forbidden|unauthorized|permission|denied|credentials?|anonymous)\b", re.IGNORECASE)
_WRITTEN_AT = ("updated", "LastModified", "mtime")
"""Keys of an entry that say when it was last written: of gcsfs, s3fs and local files."""


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, without `://`."""
    return url.partition("://")[0]


def open_storage(url: str, options: Mapping[str, object]) -> AbstractFileSystem | None:
    """Return the file system of a URL; None if fsspec knows nothing about its scheme.

    Args:
        url: the URL.
        options: what `storage_options` returned.
    """
    import fsspec
    from fsspec.registry import known_implementations, registry

    given = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    protocol = str(given.pop("protocol", scheme_of(url)))
    if protocol not in known_implementations and protocol not in registry:
        return None
    return fsspec.filesystem(protocol, **given)


def find_matches(storage: AbstractFileSystem, directory: str, pattern: str) -> list[tuple[str, str]]:
    """Return what matches a shell pattern below a directory: the paths, each with the time of its last write, if known.

    One listing for each level that has a wildcard: a checkpoint may be thousands of objects, which `glob` would list.
    """
    found = {directory.partition("://")[2].rstrip("/"): ""}
    listed = True
    for part in filter(None, pattern.split("/")):
        listed = re.search(r"[*?\[]", part) is not None
        if listed:
            entries = (entry for path in found for entry in _list(storage, path))
            found = {str(entry["name"]): _written_at(entry) for entry in entries if _matches(str(entry["name"]), part)}
        else:
            found = {f"{path}/{part}": "" for path in found}
    if not listed:
        found = {path: _written_at(entry) for path in found if (entry := _info(storage, path)) is not None}
    return [*found.items()]


def check_bucket(storage: AbstractFileSystem, url: str) -> None:
    """Check that the bucket of a URL exists: without one, nothing is known about checkpoints.

    Raises:
        TpuxError: there is no such bucket.
        Exception: it cannot be listed. A bucket whose root may not be listed exists: the permissions may be for a
            directory in it, which has been searched.
    """
    bucket = url.partition("://")[2].partition("/")[0]
    try:
        storage.ls(bucket, detail=False, refresh=True)
    except FileNotFoundError as error:
        raise TpuxError(f"there is no bucket {bucket}") from error
    except Exception as error:
        if not is_auth(error):
            raise


def is_auth(error: BaseException) -> bool:
    """Return whether the storage has refused the credentials."""
    return isinstance(error, PermissionError) or _AUTH.search(str(error)) is not None


def _matches(name: str, part: str) -> bool:
    name = name.rstrip("/").rpartition("/")[2]
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _written_at(entry: Mapping[str, object]) -> str:
    return next((str(entry[key]) for key in _WRITTEN_AT if entry.get(key)), "")


def time_of(entry: Mapping[str, object]) -> float | None:
    """Return when an entry was last written, in seconds since the epoch; None if it does not say so."""
    value = next((entry[key] for key in _WRITTEN_AT if entry.get(key)), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, (int, float)) else None


def _list(storage: AbstractFileSystem, path: str) -> list[Mapping[str, object]]:
    try:
        return list(storage.ls(path, detail=True, refresh=True))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _info(storage: AbstractFileSystem, path: str) -> Mapping[str, object] | None:
    try:
        found: Mapping[str, object] = storage.info(path)  # not `exists`, which takes every error for a no
    except FileNotFoundError:
        return None
    return found
