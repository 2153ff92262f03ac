"""Listener `history`: the ledger, which machines each job has held; it outlives the jobs' records."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tpux import Job, UsageError, api, events, hookimpl
from tpux_history.use import Held, read_held


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Add the machines that a job has released to the ledger: a record is removed only after this has returned."""
    if not isinstance(event, (events.Released, events.Transferred)):
        return
    with suppress(UsageError):  # the record was removed by force, with machines that were not released
        lines = [json.dumps(asdict(held)) + "\n" for held in read_held(api.events(job.id)) if held.end == event.at]
        if lines:
            with _path(job.user).open("a") as file:
                file.write("".join(lines))


def read_ledger() -> Iterator[Held]:
    """Yield the lines of the user's ledger, each once: an event may be delivered more than once."""
    found = dict[Held, None]()
    with suppress(FileNotFoundError):
        for line in _path(os.environ.get("TPUX_USER") or getpass.getuser()).read_text().splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut off as the disk was full
                found[Held(**json.loads(line))] = None
    yield from found


def _path(user: str) -> Path:
    return api.home() / f"ledger-{user}.jsonl"
