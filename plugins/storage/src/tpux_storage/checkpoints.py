"""The checkpoints in a job's output directories: which are complete, and which something may still resume from."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from tpux import Job, TpuxError, UsageError, api, events, plain_reason
from tpux_storage.search import find_matches, open_storage, scheme_of, time_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MARKERS = ("commit_success.txt", ".metadata")
"""Files that are written last: of Orbax in a bucket, and of PyTorch's distributed checkpoints."""
BEGUN = "_CHECKPOINT_METADATA"
"""What Orbax writes into a directory of a bucket when a save begins: it says nothing about the end."""
UNFINISHED = ".orbax-checkpoint-tmp"
_WILDCARD = re.compile(r"[*?\[]")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")

_Ordered = TypeVar("_Ordered", int, list[int])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a job.

    Attributes:
        path: its object, or its directory, without the scheme.
        attempt: the attempt that saved it.
        objects: the sizes of its objects by their paths.
        marker: the object that was written last; "" if it is not complete.
        written: when that was written, or the newest object; None if the storage does not say so.
    """

    path: str
    attempt: int
    objects: Mapping[str, int]
    marker: str
    written: float | None

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(self.objects.values())

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def objects_marker_last(self) -> list[str]:
        """Its objects in the order in which they are copied; what is deleted begins at the end."""
        return [*(path for path in self.objects if path != self.marker), *filter(None, [self.marker])]


@dataclass(frozen=True)
class Checkpoints:
    """What was found of a job.

    Attributes:
        storage: the file system of its output directories.
        scheme: that of their URLs.
        found: the checkpoints, oldest first: by attempt, and by when they were written.
        in_use: the directory that an attempt resumes from which has not ended; "" if there is none.
    """

    storage: AbstractFileSystem
    scheme: str
    found: Sequence[Checkpoint]
    in_use: str

    @property
    def complete(self) -> list[Checkpoint]:
        """Those that are complete, oldest first."""
        return [one for one in self.found if one.marker]

    def require_order(self) -> None:
        """Require that it is known which complete checkpoint is the newest.

        Raises:
            TpuxError: the storage does not say when they were written, or their names say something else.
        """
        alike = defaultdict[tuple[int, str], list[Checkpoint]](list)
        for one in self.complete:
            alike[one.attempt, _NUMBER.sub("#", one.path)].append(one)
            if one.written is None and len(self.complete) > 1:
                raise TpuxError(f"it is unknown when {one.path} was written, and so which checkpoint is the newest")
        for series in alike.values():
            steps = [[int(part) for part in _NUMBER.findall(one.path) if part.isdigit()] for one in series]
            if not _rise(steps) and not any(_rise(column) for column in zip(*steps, strict=True)):
                names = ", ".join(one.name for one in series[-3:])
                hint = "delete those that are not wanted by their paths; they may have been copied or written again"
                raise TpuxError(
                    f"it is unknown which checkpoint is the newest: written in the order {names}, which is not that of "
                    "their numbers",
                    hint=hint,
                )


def find_checkpoints(name: str, marker: str | None = None) -> Checkpoints:
    """Return the checkpoints of a job.

    Args:
        name: the job's id or name.
        marker: the file in a checkpoint's directory that is written last, if the program has one of its own.

    Raises:
        UsageError: the job has no pattern of checkpoints, or no output directories that are URLs.
        TpuxError: the storage does not answer, or it cannot be determined which checkpoints are complete.
    """
    job = api.open_job(name, reads=["job", "command", "tpu"])
    number, info = int(job.id), api.job(job.id)
    pattern = job.command.checkpoint
    if not pattern:
        raise UsageError(
            f"job {number} has no command.checkpoint", hint="it says what a checkpoint is, such as 'ckpt-*'"
        )
    started = [event for event in api.events(job.id) if isinstance(event, events.AttemptStarted)]
    if not started:
        raise UsageError(f"job {number} has no attempt yet, so it has no checkpoints")
    if "://" not in started[-1].output_dir:
        where = started[-1].output_dir
        raise UsageError(f"job {number} writes to {where} on its workers", hint="tpux exec reaches files there")
    try:
        storage, by_path = _open(job, started[-1].output_dir), dict[str, Checkpoint]()
        for event in (event for event in started if scheme_of(event.output_dir) == scheme_of(started[-1].output_dir)):
            by_path |= {one.path: one for one in _in_directory(storage, event, pattern, marker)}
    except TpuxError:
        raise
    except Exception as error:  # a library's
        raise TpuxError(f"cannot look for checkpoints of job {number}: {plain_reason(error)[:300]}") from error
    found = sorted(by_path.values(), key=lambda one: (one.attempt, one.written or 0.0, _natural(one.path)))
    if not marker and any(one.marker.endswith(f"/{MARKERS[0]}") for one in found):
        found = [one if one.marker.endswith(f"/{MARKERS[0]}") else replace(one, marker="") for one in found]
    if found and not any(one.marker for one in found):
        hint = f"name the file that is written last: --marker NAME, or command.checkpoint: '{pattern}/NAME'"
        names = ", ".join(MARKERS)
        begun = any(f"{one.path}/{BEGUN}" in one.objects for one in found)
        also = f" ({BEGUN} only if each save is renamed at its end: in a bucket Orbax writes it first)" if begun else ""
        raise TpuxError(f"it is unknown which checkpoints are complete: none of them has {names}", hint=hint + also)
    in_use = "" if info.ended else _path(started[-1].previous_output_dir)
    return Checkpoints(storage, scheme_of(started[-1].output_dir), found, in_use)


def _open(job: Job, url: str) -> AbstractFileSystem:
    scheme = scheme_of(url)
    if (storage := open_storage(url, api.machines.storage_options(job, scheme))) is None:
        raise TpuxError(f"no library for {scheme}:// is installed")
    return storage


def _in_directory(
    storage: AbstractFileSystem, event: events.AttemptStarted, pattern: str, marker: str | None
) -> list[Checkpoint]:
    parts = [part for part in pattern.split("/") if part]
    last = max((number for number, part in enumerate(parts) if _WILDCARD.search(part)), default=0)
    unit, rest = "/".join(parts[: last + 1]), "/".join(parts[last + 1 :])
    directory = _path(event.output_dir)
    names = [rest, *(f"{rest}/{name}" for name in MARKERS)] if rest else [*MARKERS]
    if rest.rpartition("/")[2] == BEGUN:
        names = [rest.removesuffix(BEGUN) + MARKERS[0]]
    names = [marker] if marker else names
    found = []
    for path in dict.fromkeys(path.rstrip("/") for path, _ in find_matches(storage, event.output_dir, unit)):
        if not path.startswith(f"{directory}/") or ".." in path.split("/"):
            raise TpuxError(f"{path} matches command.checkpoint, and is not in the output directory {directory}")
        entries = {
            str(name): entry
            for name, entry in storage.find(path, detail=True).items()
            if name == path or str(name).startswith(f"{path}/")
        }
        written = next((each for name in names if (each := f"{path}/{name}") in entries), "")
        if list(entries) == [path]:
            written = path  # an object is there as a whole, or not at all
        if UNFINISHED in path:
            written = ""
        times = [time_of(entries[written])] if written else [time_of(entry) for entry in entries.values()]
        at = max((-math.inf if time is None else time for time in times), default=-math.inf)
        objects = {name: int(entry["size"] or 0) for name, entry in entries.items()}
        found.append(Checkpoint(path, event.attempt, objects, written, None if at == -math.inf else at))
    return found


def _rise(values: Sequence[_Ordered]) -> bool:
    return all(before < after for before, after in pairwise(values))


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key by which ckpt-9 is before ckpt-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def _path(url: str) -> str:
    return url.partition("://")[2].rstrip("/")
