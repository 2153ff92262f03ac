"""What is stored of hook calls: a trace in each traced job's directory, and the last failure of each plugin."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpux import env
from tpux.clock import Clock
from tpux.errors import masked
from tpux.plugin.observer import HookCall, HookFailure, Observer
from tpux.store import files
from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store import Store

_log = logging.getLogger(__name__)
Process = Literal["shell", "supervisor"]
TRACE = "hooks.jsonl"
"""The trace in a job's directory. A job is traced if it has this file."""
MAX_TRACE = 16 * 1024 * 1024
"""Bytes: a trace grows no further."""


@dataclass(frozen=True)
class LastFailure(HookFailure):
    """The last failure of a plugin's hook, as it is stored.

    Attributes:
        at: when, in seconds since the epoch.
        job: the job for which it was called; "" before it was created.
    """

    at: float
    job: str


class HookObserver(Observer):
    """Stores the failures of hooks, and the trace of a traced job.

    Args:
        store: the store.
        clock: the current time.
        job: the directory of the job that the hooks are called for; None if it is not on disk yet.
        process: whose calls they are.

    Attributes:
        lines: the trace of a job that is not on disk yet.
    """

    def __init__(self, store: Store, clock: Clock, job: Path | None = None, process: Process = "shell") -> None:
        self.lines: list[bytes] = []
        self._failures = failures_dir(store)
        self._clock = clock
        self._job = job
        self._process = process

    def called(self, call: HookCall) -> None:
        """Append a call to the job's trace, if it has one."""
        if self._job is None:
            self.lines.append(self._line(call))
            return
        try:
            handle = os.open(self._job / TRACE, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("cannot trace hooks: %s", error)
            return
        try:
            if os.fstat(handle).st_size < MAX_TRACE:
                os.write(handle, self._line(call))
        except OSError as error:
            _log.warning("cannot trace hooks: %s", error)
        finally:
            os.close(handle)

    def _line(self, call: HookCall) -> bytes:
        at = self._clock.now() - call.seconds
        return files.dump({"at": at, "process": self._process, **call.shown(self.secrets)})

    def failed(self, failure: HookFailure) -> None:
        """Replace the plugin's last failure."""
        job = self._job.name if self._job else ""
        shown = {name: masked(text, self.secrets) for name, text in vars(failure).items()}
        last = LastFailure(**shown, at=self._clock.now(), job=job)
        try:
            self._failures.mkdir(parents=True, exist_ok=True, mode=0o700)
            JsonFile(self._failures / f"{failure.plugin}.json", LastFailure, durable=False).save(last)
        except OSError as error:
            _log.warning("cannot store the failure of plugin %s: %s", failure.plugin, error)


def start_trace(job: Path) -> None:
    """Trace the hook calls of a job from now on, if `$TPUX_TRACE_HOOKS` is set.

    Args:
        job: its directory.
    """
    if env.trace_hooks():
        files.append_output(job / TRACE, b"")


def failures_dir(store: Store) -> Path:
    """Return the directory with the last failure of each plugin, `NAME.json`."""
    return store.supervisor / "failures"
