"""The state of this machine, for jobs whose workers are directories on it: it is read once for all of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from tpux import Worker
from tpux_doctor.facts import WorkerFacts

KEEP = 45.0
"""Seconds for which the last answer counts: reading it costs several processes."""
MOUNTS = Path("/proc/self/mountinfo")
FileSystems = frozenset[int | Path]
_recent: dict[FileSystems, tuple[float, WorkerFacts]] = {}
"""The last answers, and when they were read, by the file systems they are about."""


def recent(systems: FileSystems) -> WorkerFacts | None:
    """Return the last answer about these file systems, None if it is not recent."""
    read_at, facts = _recent.get(systems, (0.0, None))
    return facts if read_at <= time.monotonic() < read_at + KEEP else None


def keep(systems: FileSystems, facts: WorkerFacts) -> None:
    """Keep an answer about these file systems."""
    _recent[systems] = time.monotonic(), facts


def file_systems(worker: Worker, output: Iterable[str]) -> FileSystems | None:
    """Return the file systems that matter to a worker that is a directory on this machine; None for another worker.

    Args:
        worker: the worker; the allocator `local` gives it a `home`.
        output: where its program writes.
    """
    home = Path(str(worker.details.get("home") or "."))
    if worker.address != "127.0.0.1" or not home.is_absolute():
        return None
    try:
        systems = {_file_system(Path(path), home) for path in output}
        return frozenset(systems | {path.stat().st_dev for path in (home, Path("/tmp")) if path.exists()})  # noqa: S108
    except OSError:  # such as a dead mount
        return None


def _file_system(path: Path, home: Path) -> int | Path:
    """Return what tells the file system of a path from others; it is not asked itself, since it may hang.

    Args:
        path: an absolute path.
        home: a directory that can be looked at.

    Returns:
        Its device if it is the same as that of the last directory above both; else where it is mounted, or the path if
        a link leads to it.
    """
    points, common = _mount_points(), Path(os.path.commonpath([path, home]))
    below = [each for each in (path, *path.parents) if each != common and each.is_relative_to(common)]
    for each in reversed(below):
        if each in points:
            return each
        if each.is_symlink():
            return path
    return common.stat().st_dev


def _mount_points() -> set[Path]:
    if not MOUNTS.exists():
        return set()
    points = (line.split()[4] for line in MOUNTS.read_text(errors="surrogateescape").splitlines())
    return {Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)) for point in points}
