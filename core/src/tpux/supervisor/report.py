"""What the supervisor says about itself: blocked turns, a full disk, an installation it cannot use, and listeners.

A blocked job's own turn cannot write an event, and no other thread may; so commands read `report.json` beside the
events. It keeps its size, so that it can be written in place on a full disk, where no event can be.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.store.state import State

_log = logging.getLogger(__name__)

SIZE = 4096
"""Bytes of the file, at least."""
LONGEST_LOG = 10_000_000
"""Bytes after which a new log is begun."""


@dataclass(frozen=True)
class Report:
    """The content of the file.

    Attributes:
        pid: the supervisor that wrote it.
        blocked: what each job whose turn is blocked waits for, by the job's id.
        unwritten: what each job waits for that could not write it, such as on a full disk, by the job's id.
        installation: why the changed installation is not used; "" if it has not changed, or is about to be used.
        stuck: that the supervisor does not move, as who reads the report has found; "" if it does.
    """

    pid: int = 0
    blocked: Mapping[str, str] = field(default_factory=dict)
    unwritten: Mapping[str, str] = field(default_factory=dict)
    installation: str = ""
    stuck: str = ""

    def applied_to(self, state: State) -> State:
        """Return a job's state, with what its turn waits for as its `why` if that turn could not write it."""
        why = (None if state.done else self.stuck) or {**self.unwritten, **self.blocked}.get(state.id)
        return state if why is None else replace(state, why=why)


def read(path: Path) -> Report:
    """Return the report; an empty one if there is no file, or it cannot be read."""
    from tpux.store.files import JsonFile

    with suppress(OSError):
        return JsonFile(path, Report).load() or Report()
    return Report()


def write(path: Path, report: Report) -> None:
    """Replace the report. An error is logged."""
    from tpux.store import files

    try:
        try:
            files.write_atomic(path, _content(report), durable=False)
        except OSError:
            with path.open("r+b") as file:  # in the space that the last one has; a reader may find half of it
                file.write(_content(report)[:SIZE])
                file.truncate(SIZE)
    except OSError as error:
        _log.warning("cannot write %s: %s", path, error)


def _content(report: Report) -> bytes:
    """Return the report as JSON of at least `SIZE` bytes, with as many jobs that cannot write as fit into that."""
    unwritten = dict(report.unwritten)
    while True:
        content = json.dumps({**asdict(report), "unwritten": unwritten}).encode()
        if len(content) <= SIZE or not unwritten:
            return content.ljust(SIZE)
        unwritten.popitem()


@dataclass(frozen=True)
class ListenerReport:
    """What a user should know of a listener.

    Attributes:
        name: the plugin.
        message: what happened last.
        disabled: it receives nothing until the supervisor starts again.
        skipped: how many events were skipped because the calls for them failed.
        at: when it happened, in seconds since the epoch.
    """

    name: str
    message: str
    disabled: bool = False
    skipped: int = 0
    at: float = 0.0


@dataclass(frozen=True)
class ListenerReports:
    """What happened to listeners in the last days: the content of `listeners.json`."""

    reports: tuple[ListenerReport, ...] = ()


def rotate_log(path: Path) -> None:
    """Begin a new log if the supervisor's, its standard error, has grown long; the last one is kept as `log.1`."""
    try:
        log = path.stat()
        if log.st_size < LONGEST_LOG or not os.path.samestat(log, os.fstat(2)):
            return
        path.replace(path.with_name("log.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    except OSError as error:  # a full disk: tried again later
        _log.warning("cannot begin a new log: %s", error)
