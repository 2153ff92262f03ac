"""`tags.json` of a job: the words that select it. `job.tags` is what it begins with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tpux.store import files, locks

FILE = "tags.json"


def dump(tags: Collection[str]) -> bytes:
    """Return the content of the file."""
    return files.dump({"tags": [*dict.fromkeys(tags)]})


def load(directory: Path) -> tuple[str, ...]:
    """Return the tags of a job.

    Args:
        directory: the job's directory.
    """
    tags = (files.load(f"{directory}/{FILE}") or {}).get("tags")
    return tuple(map(str, tags)) if isinstance(tags, list) else ()


def change(directory: Path, add: Collection[str], remove: Collection[str]) -> tuple[str, ...]:
    """Add tags to a job and remove others; return those that it has then.

    Raises:
        OSError: they cannot be written.
        TpuxError: another command held the lock for long.
    """
    with locks.held(directory / "tags.lock", what="the job's tags"):
        tags = tuple(dict.fromkeys(tag for tag in (*load(directory), *add) if tag not in remove))
        files.write_atomic(directory / FILE, dump(tags))
    return tags
