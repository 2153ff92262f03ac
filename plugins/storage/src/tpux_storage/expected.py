"""Report a job that has saved a checkpoint before, and no new one for `watch.checkpoint_expected`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from time import monotonic

from tpux import Attempt, Finding, Job, Result, Step, TpuxError, Worker, hookimpl, plain_reason, sh
from tpux_storage.search import find_matches, open_storage

NEWEST = """
IFS=; pattern={pattern}
stat -c '%Y %n' -- {directory}/$pattern 2>/dev/null | sort -n | tail -n 100
"""
"""Prints when the newest checkpoints were last written. IFS is empty so that a pattern is not split into words."""


@dataclass
class _Seen:
    """The checkpoints of an attempt that were found so far, and when the last new one was, or the first search."""

    attempt: int
    at: float
    checkpoints: set[str] = field(default_factory=set)


_seen: dict[str, _Seen] = {}
"""By job. A new supervisor counts the time from its first search on: a warning comes later for that, not too early."""


@hookimpl
def monitor(
    job: Job, attempt: Attempt, worker: Worker, options: Mapping[str, object]
) -> Generator[Step, Result, list[Finding]] | None:
    """Look for a new checkpoint: in a bucket from here, and in a directory on the first worker."""
    pattern, expected = job.command.checkpoint, job.watch.checkpoint_expected
    if not pattern or expected is None or worker.index != min(ending.worker for ending in attempt.endings):
        return None
    return _look(job, attempt, pattern, expected, options)


def _look(
    job: Job, attempt: Attempt, pattern: str, expected: float, options: Mapping[str, object]
) -> Generator[Step, Result, list[Finding]]:
    if "://" in attempt.output_dir:
        found = _in_bucket(attempt.output_dir, pattern, options)
    else:
        found = (yield sh(NEWEST, directory=attempt.output_dir, pattern=pattern)).text.splitlines()
    now, seen = monotonic(), _seen.get(job.key)
    if seen is None or seen.attempt != attempt.number:
        seen = _seen[job.key] = _Seen(attempt.number, now)
    if not seen.checkpoints.issuperset(found):
        seen.at = now
        seen.checkpoints.update(found)
    if not seen.checkpoints and not job.stage:  # it has never saved one
        return []
    minutes = (now - seen.at) / 60
    if now - seen.at < expected:
        return [Finding("ok", f"the last new checkpoint was found {minutes:.0f} min ago", where="checkpoint")]
    message = f"no new checkpoint {pattern} for {minutes:.0f} min, expected every {expected / 60:.0f} min"
    return [Finding("warning", f"{message} (watch.checkpoint_expected)", where="checkpoint")]


def _in_bucket(url: str, pattern: str, options: Mapping[str, object]) -> list[str]:
    try:
        storage = open_storage(url, options)
        return [] if storage is None else [f"{path} {at}" for path, at in find_matches(storage, url, pattern)]
    except Exception as error:
        raise TpuxError(f"cannot look for checkpoints in {url}: {plain_reason(error)[:300]}") from error
