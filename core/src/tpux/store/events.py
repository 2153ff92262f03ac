"""What happened to a job: `events.jsonl`, only ever appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.errors import TpuxError
from tpux.store import files

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

Event = Mapping[str, "JsonValue"]


def append(path: Path, event: Event) -> int:
    """Write `event` down for good; the file's length after it.

    Raises:
        OSError: it could not be written; nothing of it stays.
    """
    line = files.dump(event)
    files.append(path, line)
    return files.length(path)


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """The events from `offset` on, each with the offset after it; a torn last line is left out.

    Raises:
        TpuxError: a line in the middle is no event.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # torn: its writer died, and never acted on it
            offset += len(line)
            yield _parse(line, path, offset), offset


def truncate_torn_line(path: Path) -> bool:
    """Cut off a torn last line, before the next event is appended; whether there was one.

    Only the holder of the job's lock may do that.
    """
    end = files.length(path)
    if not end:
        return False
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return False
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return True


def _parse(line: bytes, path: Path, offset: int) -> Event:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise corrupt_event(path, offset, "this line is no event")
    return event


def corrupt_event(path: Path, offset: int, what: str) -> TpuxError:
    """The error for a line that tpux has never written."""
    hint = "the file was changed by something else than tpux: mend or remove the line"
    return TpuxError(what, where=f"{path} (the line that ends at byte {offset})", hint=hint)
