"""Reading and appending `events.jsonl`, the record of everything that happened to a job.

The event types are in `tpux.model.events`; what they do to the job's state in `tpux.store.fold`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.store import files

if TYPE_CHECKING:
    from tpux.model.events import Event


def append(path: Path, event: Event) -> int:
    """Append an event and sync it to the disk.

    Returns:
        The length of the file after it.

    Raises:
        OSError: it could not be written; nothing of it remains.
    """
    files.append(path, files.dump(event.to_json()))
    return files.length(path)


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Yield the events from `offset` on, each with the offset after it. A torn last line is skipped.

    Raises:
        TpuxError: a line is not an event, or was written by a newer tpux.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # its writer died, and never acted on it
            offset += len(line)
            yield _parse(line, path, offset), offset


def truncate_torn_line(path: Path) -> None:
    """Cut off a torn last line before the next event is appended. Only the holder of the job's lock may do that."""
    end = files.length(path)
    if not end:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _parse(line: bytes, path: Path, offset: int) -> Event:
    from tpux.model import events  # slow to import, and most readers find nothing new after the snapshot

    try:
        return events.from_json(json.loads(line))
    except events.NewerEventError as error:
        raise TpuxError(str(error), where=_place(path, offset), hint="upgrade: pip install -U tpux-core") from error
    except ValueError as error:
        raise corrupt_event(path, offset, f"corrupt event: {error}") from error


def corrupt_event(path: Path, offset: int, what: str) -> TpuxError:
    """Return the error for a line that this version of tpux does not write.

    Args:
        path: the events.
        offset: the end of the line.
        what: what is wrong with it.
    """
    hint = (
        "if a newer tpux has run this job, upgrade: pip install -U tpux-core; otherwise something other than tpux has"
        " changed the file: repair or remove the line"
    )
    return TpuxError(what, where=_place(path, offset), hint=hint)


def _place(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        number = file.read(offset).count(b"\n")
    return f"{path}:{number}"
