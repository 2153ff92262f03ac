"""Follow a job on the terminal: one line per phase on stderr, the program's output on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import BinaryIO, cast

from tpux.cli.common import say, short_id
from tpux.cli.events import describe_event
from tpux.durations import format_duration
from tpux.errors import Exit
from tpux.plugin.events import Allocated, AttemptEnded, Event, Failed, StateChanged, Waiting
from tpux.store import Store
from tpux.store.record import Record
from tpux.store.state import State
from tpux.supervisor import client

POLL_INTERVAL = 0.1
"""Seconds between two looks at a job's files."""
FLUSH_AFTER = 1.0
"""Seconds after which an incomplete line is printed without waiting for its newline."""
SUPERVISOR_CHECK_INTERVAL = 2.0
"""Seconds between two checks that a supervisor is running."""
READ_SIZE = 1 << 20
"""Bytes read from one log at a time."""

EXIT_CODES = {"succeeded": Exit.OK, "failed": Exit.JOB_FAILED, "stopped": Exit.JOB_STOPPED}


class SupervisorWatchdog:
    """Restarts the supervisor if it has died; warns once if the user has stopped it.

    Args:
        store: whose supervisor.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checked = time.monotonic()
        self._warned = False

    def check(self) -> None:
        """Check the supervisor, at most every `SUPERVISOR_CHECK_INTERVAL`."""
        if time.monotonic() - self._checked < SUPERVISOR_CHECK_INTERVAL:
            return
        self._checked = time.monotonic()
        if client.ensure_running(self._store):
            self._warned = False
        elif not self._warned:
            self._warned = True
            say("the supervisor was stopped; jobs continue after: tpux supervisor start")


class Tail:
    """Prints one worker's output as it grows, line by line, each with the worker's number."""

    def __init__(self, record: Record, attempt: int, worker: int) -> None:
        self.path = record.logs / f"attempt-{attempt}" / f"command_worker_{worker}.log"
        self._prefix = f"[{worker}] ".encode()
        self._offset = 0
        self._rest = b""
        self._since = 0.0

    def print_new(self, out: BinaryIO, *, flush: bool = False) -> bool:
        """Print the lines that were added since the last call.

        Args:
            out: where they are printed.
            flush: print an incomplete last line too.

        Returns:
            True if anything was printed.
        """
        new = self._read()
        if new:
            if not self._rest or b"\n" in new:
                self._since = time.monotonic()  # since when the incomplete line has been waiting for its newline
            *lines, self._rest = (self._rest + new).split(b"\n")
            out.writelines(self._prefix + line + b"\n" for line in lines)
        if self._rest and (flush or time.monotonic() - self._since > FLUSH_AFTER):
            out.write(self._prefix + self._rest + b"\n")
            self._rest = b""
            new = new or b"\n"
        return bool(new)

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read(READ_SIZE)
        except FileNotFoundError:
            return b""
        self._offset += len(new)
        return new


def follow(store: Store, record: Record, *, workers: Collection[int] | None = None, since: int = 0) -> int:
    """Print a job's phases and output until it has ended.

    Args:
        store: the store of the job.
        record: the job.
        workers: the workers whose output is printed; None for all.
        since: the offset into the job's events from which on they are printed.

    Returns:
        The exit code for the job's end; 1 after Ctrl-C, which leaves the job running.
    """
    job = short_id(record.id)
    try:
        return _follow(store, record, workers, since)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        say(f"job {job} keeps running in the background: tpux logs -f {job}; to stop it: tpux stop {job}")
        return Exit.ERROR
    except BrokenPipeError:  # `tpux run c.yaml | head`
        say(f"output closed; job {job} keeps running in the background: tpux logs -f {job}")
        raise


def _follow(store: Store, record: Record, workers: Collection[int] | None, since: int) -> int:
    tails: dict[tuple[int, int], Tail] = {}
    status = StatusLine(record, since)
    watchdog = SupervisorWatchdog(store)
    first = record.refresh().attempt
    out = sys.stdout.buffer
    while True:
        if not record.directory.is_dir():
            say("the job was deleted")
            return Exit.JOB_STOPPED
        state = record.refresh()
        for attempt in range(first, state.attempt + 1):  # a short attempt may start and end between two polls
            for worker in _workers_with_output(state, workers):
                tails.setdefault((attempt, worker), Tail(record, attempt, worker))
        # Print the remaining output before the status line: an ended attempt writes nothing more.
        printed = sum(
            tail.print_new(out, flush=state.ended or attempt < state.attempt) for (attempt, _), tail in tails.items()
        )
        if printed:
            out.flush()
            status.clear()
            continue
        status.update()
        if state.ended and record.finished():
            return EXIT_CODES[state.state]
        watchdog.check()
        time.sleep(POLL_INTERVAL)


def _workers_with_output(state: State, workers: Collection[int] | None) -> list[int]:
    running = cast("list[int]", state.run.get("workers", []))
    return [worker for worker in running if workers is None or worker in workers]


def wait_until_ended(store: Store, record: Record, *, timeout: float | None = None) -> State | None:
    """Wait until a job has ended, and keep its supervisor running meanwhile.

    Args:
        store: the store of the job.
        record: the job.
        timeout: seconds to wait; None waits without limit.

    Returns:
        The job's final state, or its last known state if it was deleted; None after a timeout.
    """
    start = time.monotonic()
    watchdog = SupervisorWatchdog(store)
    state = record.refresh()
    while record.directory.is_dir() and not record.finished():
        if timeout is not None and time.monotonic() - start > timeout:
            return None
        watchdog.check()
        time.sleep(POLL_INTERVAL)
        state = record.state
    return state if not record.directory.is_dir() else record.refresh()


REPORTED_DURATION = 1.0
"""Seconds from which on the duration of a phase is printed when it ends."""
REMIND_INTERVAL = 60.0
"""Seconds after which a lasting phase is printed again if stderr is not a terminal."""


class StatusLine:
    """Prints a job's phases as they change, and on a terminal a live line with the duration of the current one.

    Args:
        record: the job.
        since: the offset into the job's events from which on they are printed.
    """

    def __init__(self, record: Record, since: int = 0) -> None:
        self._record = record
        self._offset = since
        self._line = ""
        self._phase = ""
        self._since = 0.0
        self._printed_at = time.monotonic()
        self._live = sys.stderr.isatty()
        self._shown = False

    def update(self) -> None:
        """Print new events, up to the snapshot whose output was already printed."""
        for event, offset in self._record.events(self._offset):
            if offset > self._record.offset:
                break
            self._offset = offset
            self._handle(event)
        if not self._line:
            return
        if self._live:
            self._write_live()
        elif time.monotonic() - self._printed_at > REMIND_INTERVAL:
            self._printed_at = time.monotonic()
            say(f"{self._line} (for {format_duration(time.time() - self._since)})")

    def clear(self) -> None:
        """Erase the live line before other output."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            self._shown = False

    def _handle(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            if self._phase and event.at - self._since >= REPORTED_DURATION:
                self._print(f"{self._phase}: took {format_duration(event.at - self._since)}")
            self._phase, self._since = event.to, event.at
            self._print(describe_event(event))
        elif isinstance(event, Waiting):
            self._print(f"{self._phase}: {describe_event(event)}")
        elif isinstance(event, (Allocated, Failed)) or (isinstance(event, AttemptEnded) and event.failure):
            self._print(describe_event(event))

    def _print(self, line: str) -> None:
        self.clear()
        say(line)
        self._line = line
        self._printed_at = time.monotonic()

    def _write_live(self) -> None:
        sys.stderr.write(f"\r\x1b[K  {self._line.splitlines()[0][:60]} … {format_duration(time.time() - self._since)}")
        sys.stderr.flush()
        self._shown = True
