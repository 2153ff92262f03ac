"""Checkpoints in output directories that are URLs: fsspec opens them, whose libraries know the schemes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tpux import Checkpoint, Failure, Finding, Job, TpuxError, hookimpl, plain_reason

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_AUTH = re.compile(r"\b(401|403|forbidden|unauthorized|permission|denied|credentials?|anonymous)\b", re.IGNORECASE)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report why the job's `output_dir` cannot be used: its scheme's library may be missing."""
    from fsspec.registry import known_implementations

    url, where = job.job.output_dir or "", "job.output_dir"
    scheme = _scheme(url)
    if scheme in {"file", "local", "memory"}:
        hint = "write a path on the workers without a scheme"
        return [Finding("error", f"{scheme}:// would be a directory of this machine", where, hint)]
    if not url.partition("://")[2].partition("/")[0]:
        return [Finding("error", f"{url!r} names no bucket", where, f"write {scheme}://BUCKET/DIRECTORY")]
    if scheme in {"http", "https", "data"}:
        return [Finding("error", f"nothing can be stored at {scheme}://", where, "gs:// is Google Cloud Storage")]
    if (known := known_implementations.get(scheme)) is None:
        hint = "gs:// is Google Cloud Storage; a mounted bucket is a path"
        return [Finding("error", f"unknown scheme {scheme}://", where, hint)]
    if find_spec(str(known["class"]).partition(".")[0]) is None:  # not imported: that may take seconds
        hint = str(known.get("err") or f"install the library of {known['class']}")
        return [Finding("error", f"the library for {scheme}:// is not installed", where, hint)]
    return []


@hookimpl
def find_checkpoint(job: Job, directories: Sequence[str], options: Mapping[str, object]) -> Checkpoint | Failure | None:
    """Find the last attempt's output directory that has a checkpoint."""
    import fsspec
    from fsspec.registry import known_implementations, registry

    given = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    protocol = str(given.pop("protocol", _scheme(directories[0])))
    if protocol not in known_implementations and protocol not in registry:
        return None
    try:
        storage = fsspec.filesystem(protocol, **given)
        for directory in directories:
            if _has_match(storage, directory, job.command.checkpoint or "*"):
                return Checkpoint(directory)
        _check_bucket(storage, directories[0])
    except TpuxError:
        raise
    except Exception as error:  # noqa: BLE001  (a library's; whatever it is, the answer is unknown)
        return Failure("auth" if _is_auth(error) else "infra", evidence=plain_reason(error)[:300])
    return Checkpoint("")


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _has_match(storage: AbstractFileSystem, directory: str, pattern: str) -> bool:
    """Return whether anything below a directory matches a shell pattern.

    One listing for each level that has a wildcard: a checkpoint may be thousands of objects, which `glob` would list.
    """
    paths, listed = [directory.partition("://")[2].rstrip("/")], False
    for part in filter(None, pattern.split("/")):
        listed = re.search(r"[*?\[]", part) is not None
        if listed:
            paths = [name for path in paths for name in _list(storage, path) if _matches(name, part)]
        else:
            paths = [f"{path}/{part}" for path in paths]
    return bool(paths) if listed else any(_exists(storage, path) for path in paths)


def _check_bucket(storage: AbstractFileSystem, url: str) -> None:
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
        if not _is_auth(error):
            raise


def _matches(name: str, part: str) -> bool:
    name = name.rstrip("/").rpartition("/")[2]
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _list(storage: AbstractFileSystem, path: str) -> list[str]:
    try:
        return [str(name) for name in storage.ls(path, detail=False, refresh=True)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _exists(storage: AbstractFileSystem, path: str) -> bool:
    try:
        storage.info(path)  # not `exists`, which takes every error for a no
    except FileNotFoundError:
        return False
    return True


def _is_auth(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or _AUTH.search(str(error)) is not None
