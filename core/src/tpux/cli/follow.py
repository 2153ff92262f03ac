"""Following a job on the screen: a line a phase on stderr, the program's output, by worker, on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import BinaryIO, cast

from tpux.cli.common import say
from tpux.cli.events import describe_event
from tpux.errors import Exit
from tpux.store import Store
from tpux.store.events import Event
from tpux.store.record import Record
from tpux.store.state import State
from tpux.supervisor import client

LOOK_EVERY = 0.1
FLUSH_AFTER = 1.0
"""Seconds after which a line without its newline is shown all the same."""
REVIVE_EVERY = 2.0
PIECE = 1 << 20

EXIT_CODES = {"succeeded": Exit.OK, "failed": Exit.JOB_FAILED, "stopped": Exit.JOB_STOPPED}


class SupervisorWatchdog:
    """Sees to it, every now and then, that a supervisor drives the user's jobs; says so where none may."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked = time.monotonic()
        self._told = False

    def look(self) -> None:
        """Look, if it is time."""
        if time.monotonic() - self._looked < REVIVE_EVERY:
            return
        self._looked = time.monotonic()
        if client.ensure_running(self._store):
            self._told = False
        elif not self._told:
            self._told = True
            say("the supervisor was stopped, so this waits: `tpux supervisor start` lets jobs go on")


class Tail:
    """The end of one worker's output, shown line by line with the worker's number before each."""

    def __init__(self, record: Record, attempt: int, worker: int) -> None:
        self.path = record.logs / f"attempt-{attempt}" / f"command_worker_{worker}.log"
        self._prefix = f"[{worker}] ".encode()
        self._offset = 0
        self._rest = b""
        self._since = 0.0

    def show(self, out: BinaryIO, *, all_of_it: bool = False) -> bool:
        """Show what is new; whether anything was."""
        new = self._read()
        if new:
            if not self._rest or b"\n" in new:
                self._since = time.monotonic()  # since when the line at hand has been waiting for its end
            *lines, self._rest = (self._rest + new).split(b"\n")
            out.writelines(self._prefix + line + b"\n" for line in lines)
        if self._rest and (all_of_it or time.monotonic() - self._since > FLUSH_AFTER):
            out.write(self._prefix + self._rest + b"\n")
            self._rest = b""
            new = new or b"\n"
        return bool(new)

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read(PIECE)
        except FileNotFoundError:
            return b""
        self._offset += len(new)
        return new


def follow(store: Store, record: Record, *, workers: Collection[int] | None = None, since: int = 0) -> int:
    """Show a job's phases and output until it has ended.

    Args:
        store: where it is.
        record: the job.
        workers: those whose output is shown; all of them where it is None.
        since: the length of its events from which on they are news.

    Returns:
        The exit code that its end stands for. Ctrl-C leaves the job running: 1.
    """
    job = record.directory.name
    try:
        return _follow(store, record, workers, since)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        say(f"job {job} goes on without you: `tpux logs -f {job}` follows it, `tpux stop {job}` stops it")
        return Exit.ERROR
    except BrokenPipeError:  # `tpux run c.yaml | head`
        say(f"nobody reads on; job {job} goes on: `tpux stop {job}` stops it")
        raise


def _follow(store: Store, record: Record, workers: Collection[int] | None, since: int) -> int:
    tails: dict[tuple[int, int], Tail] = {}
    phases = StatusLine(record, since)
    attendant = SupervisorWatchdog(store)
    first = record.refresh().attempt
    out = sys.stdout.buffer
    while True:
        if not record.directory.is_dir():
            say("the job was deleted")
            return Exit.JOB_STOPPED
        state = record.refresh()
        for attempt in range(first, state.attempt + 1):  # a short one may have come and gone between two looks
            for worker in _writing(state, workers):
                tails.setdefault((attempt, worker), Tail(record, attempt, worker))
        # An attempt that has ended writes no more: its last words come before the line that says so.
        news = sum(tail.show(out, all_of_it=state.ended) for tail in tails.values())
        if news:
            out.flush()
            phases.clear()
            continue
        phases.show()
        if state.ended and record.finished():
            return EXIT_CODES[state.state]
        attendant.look()
        time.sleep(LOOK_EVERY)


def _writing(state: State, workers: Collection[int] | None) -> list[int]:
    running = cast("list[int]", state.run.get("workers", []))
    return [worker for worker in running if workers is None or worker in workers]


def until_ended(store: Store, record: Record, *, timeout: float | None = None) -> State | None:
    """Wait for a job's end, and see to it that a supervisor drives it.

    Returns:
        The job as it ended; None when it had not after `timeout` seconds. A job that is deleted meanwhile is
        as it was when last seen.
    """
    start = time.monotonic()
    attendant = SupervisorWatchdog(store)
    state = record.refresh()
    while record.directory.is_dir() and not record.finished():
        if timeout is not None and time.monotonic() - start > timeout:
            return None
        attendant.look()
        time.sleep(LOOK_EVERY)
        state = record.state
    return state if not record.directory.is_dir() else record.refresh()


REMIND_EVERY = 60.0
"""Seconds after which a phase that goes on is named again where there is no live line."""


class StatusLine:
    """What the job is doing, as it happens.

    Args:
        record: the job.
        since: the length of its events from which on they are news.
    """

    def __init__(self, record: Record, since: int = 0) -> None:
        self._record = record
        self._offset = since
        self._line = ""
        self._phase = ""
        self._since = 0.0
        self._reminded = time.monotonic()
        self._live = sys.stderr.isatty()
        self._shown = False

    def show(self) -> None:
        """Show what has happened since the last time, as far as the record was looked at: the output came first."""
        for event, offset in self._record.events(self._offset):
            if offset > self._record.offset:
                break
            self._offset = offset
            self._hear(event)
        if not self._line:
            return
        if self._live:
            self._write_live()
        elif time.monotonic() - self._reminded > REMIND_EVERY:
            self._reminded = time.monotonic()
            say(f"{self._line} (for {format_duration(time.time() - self._since)})")

    def clear(self) -> None:
        """Take the live line away, for something else is written."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            self._shown = False

    def _hear(self, event: Event) -> None:
        at, kind = cast("float", event["at"]), event["type"]
        if kind == "moved":
            took = f" ({self._phase} took {format_duration(at - self._since)})" if self._phase else ""
            self._phase, self._since = cast("str", event["to"]), at
            self._say(describe_event(event), took)
        elif kind == "waiting":
            self._say(f"{self._phase}: {describe_event(event)}")
        elif kind in {"allocated", "failure"} or (kind == "attempt-ended" and event["failure"]):
            self._say(describe_event(event))

    def _say(self, line: str, more: str = "") -> None:
        self.clear()
        say(line + more)
        self._line = line
        self._reminded = time.monotonic()

    def _write_live(self) -> None:
        sys.stderr.write(f"\r\x1b[K  {self._line.splitlines()[0][:60]} … {format_duration(time.time() - self._since)}")
        sys.stderr.flush()
        self._shown = True


def format_duration(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
