"""Listener `history`: the ledger, which machines each job has held; it outlives the jobs' records."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from tpux import Job, UsageError, api, events, hookimpl
from tpux_history.use import Held, read_held


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Add the machines that a job has released to the ledger: a record is removed only after this has returned."""
    if not isinstance(event, (events.Released, events.Transferred)):
        return
    with suppress(UsageError):  # the record was removed by force, with machines that were not released
        given_up = [held for held in read_held(api.events(job.id)) if held.end == event.at]
        tags = api.job(job.id).tags if given_up else ()
        lines = [json.dumps(asdict(replace(held, tags=tags))) + "\n" for held in given_up]
        if lines:
            with _path(job.user).open("a") as file:
                file.write("".join(lines))


def read_ledger(*, all_users: bool = False) -> Iterator[Held]:
    """Yield the lines of the user's ledger, each once: an event may be delivered more than once.

    Args:
        all_users: also those of the other users of the store, as far as their ledgers can be read.
    """
    own = own_user()
    found = dict[Held, None]()
    for path in sorted({_path(own), *api.home().glob("ledger-*.jsonl")}) if all_users else [_path(own)]:
        user = path.stem.removeprefix("ledger-")
        with suppress(FileNotFoundError, *([] if user == own else [PermissionError])):
            for line in path.read_text().splitlines():
                with suppress(ValueError, TypeError):  # a line that was cut off as the disk was full
                    values = json.loads(line)
                    tags = tuple(values.pop("tags", ()))
                    found[Held(**{**values, "tags": tags, "user": user})] = None
    yield from found


def own_user() -> str:
    """Return the user whose jobs these commands show."""
    return os.environ.get("TPUX_USER") or getpass.getuser()


def _path(user: str) -> Path:
    return api.home() / f"ledger-{user}.jsonl"
