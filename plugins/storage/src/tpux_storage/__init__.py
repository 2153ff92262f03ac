"""Checkpoints in output directories that are URLs: fsspec opens them, whose libraries know the schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from tpux import Checkpoint, Failure, Finding, Job, TpuxError, hookimpl, plain_reason
from tpux_storage.expected import monitor
from tpux_storage.search import check_bucket, find_matches, is_auth, open_storage, scheme_of

__all__ = ["find_checkpoint", "monitor", "preflight"]


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report why the job's `output_dir` cannot be used: its scheme's library may be missing."""
    from fsspec.registry import known_implementations

    url, where = job.job.output_dir or "", "job.output_dir"
    scheme = scheme_of(url)
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
    try:
        if (storage := open_storage(directories[0], options)) is None:
            return None
        for directory in directories:
            if find_matches(storage, directory, job.command.checkpoint or "*"):
                return Checkpoint(directory)
        check_bucket(storage, directories[0])
    except TpuxError:
        raise
    except Exception as error:  # noqa: BLE001  (a library's; whatever it is, the answer is unknown)
        return Failure("auth" if is_auth(error) else "infra", evidence=plain_reason(error)[:300])
    return Checkpoint("")
