"""Follow a job on the terminal: one line per phase on stderr, the program's output on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from tpux.api.event_lines import RepetitionFilter, describe_event, describe_failure
from tpux.api.watch import watch
from tpux.cli.common import (
    FAILURE_COLOUR,
    STATE_COLOURS,
    changed_sources,
    describe_changed,
    report_end,
    say,
    short_id,
)
from tpux.cli.tail import Shown, Tail
from tpux.console import clear_live_line, draw_live_line, end_interrupted_line, has_live_line
from tpux.durations import format_duration
from tpux.errors import Exit, TpuxError
from tpux.model.events import Allocated, AttemptEnded, Event, Failed, PreemptionAnnounced, StateChanged, Waiting
from tpux.store import Store, requests
from tpux.store.record import Record
from tpux.store.state import State

EXIT_CODES = {"succeeded": Exit.OK, "failed": Exit.JOB_FAILED, "stopped": Exit.JOB_STOPPED}


def follow(
    store: Store,
    record: Record,
    *,
    workers: Collection[int] | None = None,
    since: int | None = 0,
    tail: int | None = None,
    after: float | None = None,
    modules: bool = False,
    shown: Shown | None = None,
    first: int | None = None,
) -> int:
    """Print a job's phases and output until it has ended.

    Args:
        store: the store of the job.
        record: the job.
        workers: the workers whose output is printed; None for all.
        since: the offset into the job's events from which on they are printed; None prints the current state in one
            line, and the events that follow.
        tail: how many lines of each worker's output so far are printed; None for all of the current attempt.
        after: only the output so far that was written after this time, in seconds since the epoch.
        modules: print also the logs of the modules while the workers are set up.
        shown: which lines of output are printed, and how.
        first: the attempt from which on output is printed; None for the current one.

    Returns:
        The exit code for the job's end; 1 after Ctrl-C, which leaves the job running.
    """
    job = short_id(record.id)
    try:
        set_up = SetUpLogs(record, workers, tail, after) if modules else None
        first_tail = partial(Tail, lines=tail, after=after)
        return _follow(store, record, workers, since, first_tail, set_up, shown or Shown(), first)
    except KeyboardInterrupt:
        end_interrupted_line()
        say(f"job {job} keeps running in the background: tpux logs -f {job}; to stop it: tpux stop {job}")
        return Exit.ERROR
    except BrokenPipeError:  # `tpux run c.yaml | head`
        say(f"output closed; job {job} keeps running in the background: tpux logs -f {job}")
        raise
    finally:
        clear_live_line()


def _follow(
    store: Store,
    record: Record,
    workers: Collection[int] | None,
    since: int | None,
    first_tail: Callable[[Path, int, bool], Tail],
    set_up: SetUpLogs | None,
    shown: Shown,
    first: int | None,
) -> int:
    tails: dict[tuple[int, int], Tail] = {}
    current = record.refresh().attempt
    first = current if first is None else first
    status = StatusLine(store, record, since)
    redraws = has_live_line() and sys.stdout.isatty()
    reading = record.reader_lock  # released with it, as this function ends
    for state in watch(store, record, warn=say):
        if not reading.held:
            with suppress(OSError, TpuxError):  # without it output is shown later
                reading.acquire()
        for attempt in range(first, state.attempt + 1):  # a short attempt may start and end between two polls
            for worker in (index for index in state.run.workers if workers is None or index in workers):
                if (attempt, worker) not in tails:
                    path = record.output_log(attempt, worker)
                    tails[attempt, worker] = (first_tail if attempt == first else Tail)(path, worker, redraws)
        if set_up is not None:
            _print_lines(set_up.read(state), shown)
        # Print the remaining output before the status line: an ended attempt writes nothing more.
        ended = {(attempt, worker): state.ended or attempt < state.attempt for attempt, worker in tails}
        while output := [(tail.worker, lines) for key, tail in tails.items() if (lines := tail.read(flush=ended[key]))]:
            _print_lines(output, shown)
        latest = max(tails.values(), key=lambda tail: tail.changed_at, default=None)
        status.update(latest.incomplete if latest and redraws else "")
        if state.ended and requests.has_finished(record):
            report_end(store, record, state)
            return EXIT_CODES[state.state]
    say("the job was deleted")
    return Exit.JOB_STOPPED


def _print_lines(output: list[tuple[int, list[bytes]]], shown: Shown) -> None:
    """Print what was read of each log: the lines of a worker that has several logs in their order."""
    if output:
        clear_live_line()
        by_worker: dict[int, list[tuple[float, bytes]]] = {}
        for worker, lines in output:
            by_worker.setdefault(worker, []).extend((time.time(), line) for line in lines)
        sys.stdout.buffer.writelines(line + b"\n" for line in shown.lines(by_worker))
        sys.stdout.buffer.flush()


class SetUpLogs:
    """The logs of the modules, as they grow while workers are set up.

    Args:
        record: the job.
        workers: the workers whose logs are read; None for all.
        tail: how many lines that are there already are read of each; None for `SET_UP_LINES`.
        after: only what is there that was written after this time.
    """

    def __init__(self, record: Record, workers: Collection[int] | None, tail: int | None, after: float | None) -> None:
        self._record = record
        self._workers = workers
        self._tail = SET_UP_LINES if tail is None else tail
        self._after = after
        self._present = set(record.logs.glob("*_worker_*.log"))
        self._tails: dict[Path, Tail] = {}

    def read(self, state: State) -> list[tuple[int, list[bytes]]]:
        """Return the new lines of each log, with its worker; the log of an earlier set-up is none of this one."""
        sets_up = state.state == "setting-up"
        for path in sorted(self._record.logs.glob("*_worker_*.log")) if sets_up else ():
            module, _, worker = path.stem.rpartition("_worker_")
            chosen = self._workers is None or int(worker) in self._workers
            if chosen and path not in self._tails and path.stat().st_mtime >= state.since:
                tail, after = (self._tail, self._after) if path in self._present else (None, None)
                self._tails[path] = Tail(path, int(worker), lines=tail, after=after, module=module)
        lines = [(tail.worker, new) for tail in self._tails.values() if (new := tail.read(flush=not sets_up))]
        if not sets_up and not lines:
            self._present |= self._tails.keys()
            self._tails.clear()
        return lines


def wait_until_ended(store: Store, record: Record, *, timeout: float | None = None, request: int = 0) -> State | None:
    """Wait until a job has ended, and keep its supervisor running meanwhile.

    Args:
        store: the store of the job.
        record: the job.
        timeout: seconds to wait; None waits without limit.
        request: the number of a request that must have taken effect before, or a later one. If a later one has
            started the job again, its end is not waited for.

    Returns:
        The job's final state, its current one if it was started again, or its last known state if it was deleted; None
        after a timeout.
    """
    for state in watch(store, record, timeout=timeout, warn=say, notice=say):
        finished = requests.has_finished(record) and record.state.last_request_number >= request
        later = state.last_request.get("action") if 0 < request < state.last_request_number else None
        if finished or later in {"resume", "rerun", "setup"}:
            return record.state
    return None if record.directory.is_dir() else record.state


SET_UP_LINES = 10
"""Lines of each module's log that are printed at first, if there are more."""
REPORTED_DURATION = 1.0
"""Seconds from which on the duration of a phase is printed when it ends."""
REMIND_INTERVAL = 60.0
"""Seconds after which a lasting phase is printed again if stderr is not a terminal."""


class StatusLine:
    """Prints a job's phases as they change, and on a terminal a live line with the duration of the current one.

    Args:
        store: the store of the job.
        record: the job.
        since: the offset into the job's events from which on they are printed; None prints the current state first.
    """

    def __init__(self, store: Store, record: Record, since: int | None = 0) -> None:
        self._store = store
        self._record = record
        self._offset = record.offset if since is None else since
        self._line = ""
        self._phase = ""
        self._since = self._step_since = 0.0
        self._printed_at = time.monotonic()
        self._live = has_live_line()
        self._filter = RepetitionFilter(record.state.why if since is None else "")
        if since is None:
            self._phase, self._since = record.state.state, record.state.since
            self._step_since = record.state.updated_at
            say(f"job {short_id(record.id)} ({record.state.name}): {_current(record.state)}")
            if record.state.hint:
                say(f"hint: {record.state.hint}")
            self._line = record.state.why or self._phase

    def update(self, incomplete: str = "") -> None:
        """Print new events, up to the snapshot whose output was already printed, and draw the live line.

        Args:
            incomplete: a line of output whose end has not come yet: shown in the live line, instead of the phase.
        """
        for event, offset in self._record.events(self._offset):
            if offset > self._record.offset:
                break
            self._offset = offset
            self._handle(event)
        if not self._line:
            return
        if self._live:
            since = self._step_since if self._phase == "setting-up" and not incomplete else self._since
            draw_live_line(incomplete or self._line, f"… {format_duration(time.time() - since)}")
        elif time.monotonic() - self._printed_at > REMIND_INTERVAL:
            self._printed_at = time.monotonic()
            say(f"{self._line} (for {format_duration(time.time() - self._since)})")

    def _handle(self, event: Event) -> None:
        if not self._filter.is_new(event):
            return
        if isinstance(event, StateChanged):
            if self._phase and event.at - self._since >= REPORTED_DURATION:
                self._print(f"{self._phase}: took {format_duration(event.at - self._since)}")
            self._phase, self._since = event.to, event.at
            self._step_since = event.at
            self._print(describe_event(event), STATE_COLOURS[event.to])
            if event.to == "recovering" and (
                changed := describe_changed(changed_sources(self._store, self._record), self._record.state)
            ):
                say(f"hint: {changed}")
        elif isinstance(event, Waiting):
            self._step_since = event.at
            self._print(f"{self._phase}: {describe_event(event)}")
            if event.hint:
                say(f"hint: {event.hint}")
        elif isinstance(event, Failed) or (isinstance(event, AttemptEnded) and event.failure):
            self._print(describe_event(event), FAILURE_COLOUR)
        elif isinstance(event, (Allocated, PreemptionAnnounced)):
            self._print(describe_event(event))

    def _print(self, line: str, colour: str | None = None) -> None:
        say(line, colour)
        self._line = line
        self._printed_at = time.monotonic()


def _current(state: State) -> str:
    """Return a job's state in one line: since when it lasts, its attempt, what it waits for or why it ended."""
    failure = state.failure if state.state in {"failed", "recovering"} else None
    why = state.why or (describe_failure(failure) if failure else "")
    attempt = f"attempt {state.attempt}" if state.attempt and f"attempt {state.attempt}" not in why else ""
    lasts = f"{state.state} for {format_duration(time.time() - state.since)}"
    return ": ".join(filter(None, [lasts, attempt, why]))
