"""The checkpoints in a job's output directories: which are complete, and which something may still resume from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux import Job, TpuxError, UsageError, api, events, plain_reason
from tpux_storage.search import find_matches, open_storage, scheme_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MARKERS = ("commit_success.txt", "_CHECKPOINT_METADATA", ".metadata")
"""Files that are written last: of Orbax on Cloud Storage, of Orbax, and of PyTorch's distributed checkpoints."""
UNFINISHED = ".orbax-checkpoint-tmp"
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a job.

    Attributes:
        path: its object, or its directory, without the scheme.
        attempt: the attempt that saved it.
        objects: the sizes of its objects by their paths.
        marker: the object that was written last; "" if it is not complete.
    """

    path: str
    attempt: int
    objects: Mapping[str, int]
    marker: str

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
        found: the checkpoints, oldest first.
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
        storage, found = _open(job, started[-1].output_dir), list[Checkpoint]()
        for event in (event for event in started if scheme_of(event.output_dir) == scheme_of(started[-1].output_dir)):
            found += _in_directory(storage, event, pattern, marker)
    except TpuxError:
        raise
    except Exception as error:  # a library's
        raise TpuxError(f"cannot look for checkpoints of job {number}: {plain_reason(error)[:300]}") from error
    if found and not any(one.marker for one in found):
        hint = f"name the file that is written last: --marker NAME, or command.checkpoint: '{pattern}/NAME'"
        names = ", ".join(MARKERS)
        raise TpuxError(f"it is unknown which checkpoints are complete: none of them has {names}", hint=hint)
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
    paths = [match.partition(" ")[0] for match in find_matches(storage, event.output_dir, unit)]
    found = []
    for path in (path.rstrip("/") for path in paths):
        objects = {str(name): int(info["size"] or 0) for name, info in storage.find(path, detail=True).items()}
        names = [marker] if marker else [rest, *(f"{rest}/{name}" for name in MARKERS)] if rest else MARKERS
        written = next((each for name in names if (each := f"{path}/{name}") in objects), "")
        if list(objects) == [path]:
            written = path  # an object is there as a whole, or not at all
        if UNFINISHED in path:
            written = ""
        found.append(Checkpoint(path, event.attempt, objects, written))
    return sorted(found, key=lambda one: _natural(one.path))


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key by which ckpt-9 is before ckpt-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def _path(url: str) -> str:
    return url.partition("://")[2].rstrip("/")
