"""Run a plugin's steps on one worker, so that they can be interrupted anywhere and run again."""

from __future__ import annotations

import mmap
import os
import re
import secrets
import shlex
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

from tpux.clock import Clock, SystemClock
from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import OpenHost
from tpux.model.job import Command
from tpux.model.steps import Put, Result, Sh, Step
from tpux.remote.disks import find_full, full_now
from tpux.remote.process import RemoteProcess, Status, poll, probe, start, stop
from tpux.remote.script import LONGEST_INLINE

AT_ONCE = 5.0
"""Seconds that the script of a check may take in one exchange with the worker."""
LONGEST_WAIT = 1.0
"""Seconds that the start of a step waits for its end at most."""
TAIL = 1024 * 1024
"""How many bytes at the end of a step's output are in its `Result`; the log has all."""
SILENCE = 20.0
"""Seconds without output after which a step is probed: its runner may have been killed."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a step that took too long."""
KILL_TIMEOUT = 10.0
"""Seconds after SIGKILL for which a step is waited for: a process that hangs in the kernel does not end."""
LOST = 255
"""The exit code of a step whose own exit code is unknown."""
TERMINATED = 143
"""The exit code of a step that took too long and then exited with 0: 128 + SIGTERM, as shells report it."""
LONGEST_LINE = 200
"""How many characters of a script's first line are logged."""


class StepRunner:
    """Runs a generator of steps on one worker.

    Each script is a run of its own. After the supervisor's death the generator is run again from its start: a step
    whose exit code is on the worker's disk returns that, one that is running is attached to, and files are copied
    again unless the script after them was started: it, or a later one, may have removed a file that has secrets.
    Scripts are logged, so a step must not contain secrets; they travel in a `Put`.

    Args:
        host: the worker; may be replaced between two calls of `advance`.
        steps: what a plugin's hook returned.
        name: returns the run of a step from its number and the step, the same each time.
        log: receives the scripts' first lines and their output.
        clock: measures how long a step takes.
        done: how many of the first steps an earlier try has done: they return the results of the runs that `name`
            returns for them, and files for them are not copied again.
        at_once: the first script changes nothing: it is tried in one exchange with the worker, and is a run of its own
            only if that takes longer than `AT_ONCE`.

    Attributes:
        failed: the step that failed, and its result; None if none has.
        value: what the generator returned.
        succeeded: how many of the first steps have succeeded, before the first that has not.
    """

    def __init__(
        self,
        host: OpenHost,
        steps: Generator[Step, Result, object],
        name: Callable[[int, Sh], RemoteProcess],
        log: ReplayLog,
        clock: Clock | None = None,
        done: int = 0,
        *,
        at_once: bool = False,
    ) -> None:
        self.host = host
        self.failed: tuple[Step, Result] | None = None
        self.value: object = None
        self.succeeded = 0
        self._done = done
        self._at_once = at_once
        self._steps = steps
        self._name = name
        self._log = log
        self._clock = clock or SystemClock()
        self._number = 0
        self._step: Step | None = None
        self._process: StepProcess | None = None
        self._held: list[Put] = []  # files that the worker has, or has had, if the next script was started

    @property
    def run(self) -> RemoteProcess | None:
        """The run of the current step; None between two steps."""
        return self._process.run if self._process else None

    @property
    def step(self) -> Step | None:
        """The current step; None when the generator has ended."""
        return self._step

    def advance(self, time_slice: float) -> bool:
        """Run steps for `time_slice` seconds, or until a step takes longer.

        Returns:
            True when the generator has ended, or a step has failed.

        Raises:
            HostUnreachableError: the worker did not answer; the next call continues from here.
            TpuxError: the worker could not start a step.
            Exception: the generator raised it.
        """
        deadline = self._clock.monotonic() + time_slice
        if self._number == 0:
            self._next_step(None)
        while self._step is not None or self._held:
            step = self._step
            if step is None or (self._held and isinstance(step, Sh)):
                self._copy_held(step)
                continue
            result = self._run(step, deadline - self._clock.monotonic())
            if result is None:
                break
            self._finish(step, result)
            # Not between a file and its script: a job that is stopped there would leave the file.
            if isinstance(step, Sh) and self._clock.monotonic() >= deadline:
                break
        return self._step is None

    def _run(self, step: Step, wait: float) -> Result | None:
        if isinstance(step, Put):
            if not self._log.is_replayed and self._number > self._done:
                return self._put(step)
            self._held.append(step)
            return Result()
        if self._process is None:
            if self._at_once and self._number == 1:
                self._at_once = False
                if (result := run_once(self.host, step, AT_ONCE)) is not None:
                    self._log.step(step, result)
                    return result
            log = self._log if self._number > self._done else None
            self._process = StepProcess(self._name(self._number, step), step, log, self._clock)
        return self._process.poll(self.host, min(max(wait, 0.0), LONGEST_WAIT))

    def _copy_held(self, following: Step | None) -> None:
        """Copy the files that were held, unless the script that follows them, if any, was started."""
        started = isinstance(following, Sh) and self._was_started(following)
        while self._held:
            step = self._held[0]
            result = Result() if started else self._put(step)
            if started and self._number > self._done:
                self._log.line(f"put {step.remote}")
            del self._held[0]
            if not result.ok:
                self._held.clear()
                self._finish(step, result)

    def _was_started(self, step: Sh) -> bool:
        return poll(self.host, self._name(self._number, step), 0).phase != "absent"

    def _put(self, step: Put) -> Result:
        """Copy a file. A worker that cannot store it, such as one with a full disk, fails the step."""
        problem = ""
        try:
            self.host.put(step.source, step.remote, step.mode)
        except HostUnreachableError:
            raise
        except TpuxError as error:
            problem = error.message
        if problem and (full := full_now(self.host, problem)):
            problem = f"{problem}\ntpux: {full}"
        self._log.line(f"put {step.remote}" + (f": {problem}" if problem else ""))
        return Result(1, problem.encode()) if problem else Result()

    def _finish(self, step: Step, result: Result) -> None:
        """Send the result to the generator, unless it is a failure that the step does not allow."""
        if result.ok and self.succeeded == self._number - 1:
            self.succeeded = self._number
        allowed = isinstance(step, Sh) and step.may_fail and not (self._process and self._process.lost)
        self._process = None
        if result.ok or allowed:
            self._next_step(result)
        else:
            self.failed, self._step = (step, result), None
            self._steps.close()

    def _next_step(self, result: Result | None) -> None:
        self._number += 1
        self._step = None  # if the generator raises, it has ended
        try:
            self._step = next(self._steps) if result is None else self._steps.send(result)
        except StopIteration as end:
            self.value = end.value


class StepProcess:
    """One script of a plugin, running on a worker.

    Args:
        run: its run.
        step: the step.
        log: receives the script's first line and its output, once; None if they are logged already.
        clock: measures how long it takes.

    Attributes:
        lost: its exit code is unknown, so that not even `may_fail` allows it.
    """

    def __init__(self, run: RemoteProcess, step: Sh, log: ReplayLog | None, clock: Clock) -> None:
        self.run = run
        self.lost = False
        self._step = step
        self._log = log
        self._clock = clock
        self._started = False
        self._started_at = self._news_at = clock.monotonic()
        self._terminated_at: float | None = None
        self._killed_at: float | None = None
        self._reason = ""
        self._offset = 0
        self._tail = bytearray()
        self._line(_heading(step))

    def poll(self, host: OpenHost, wait: float) -> Result | None:
        """Start or poll the script; terminate it when it has taken longer than its timeout.

        Args:
            host: the worker.
            wait: how many seconds the start may wait for the end.

        Returns:
            The result once the script has ended.
        """
        if self._terminated_at is not None:
            return self._terminate(host, self._terminated_at)
        status = self._fetch_output(host, self._start_or_poll(host, wait))
        if status.phase in {"ended", "lost"}:
            return self._result(host, status)
        if self._clock.monotonic() - self._started_at > self._step.timeout:
            self._terminated_at = self._clock.monotonic()
        return None

    def _line(self, text: str) -> None:
        if self._log is not None:
            self._log.line(text)

    def _start_or_poll(self, host: OpenHost, wait: float) -> Status:
        if not self._started:
            command = Command(("sh", "-e", self.run.script), self.run.script)
            status = start(host, self.run, self._step.script, command, offset=self._offset, wait=wait)
            self._started = True
            self._started_at = self._clock.monotonic() - status.age
            return status
        if self._clock.monotonic() - self._news_at < SILENCE:
            status = poll(host, self.run, self._offset)
            if status.phase != "absent":
                return status
        self._news_at = self._clock.monotonic()
        status = probe(host, self.run, self._offset)
        if status.phase == "absent":
            return replace(status, phase="lost", reason="the run is no longer on the worker")
        return status

    def _fetch_output(self, host: OpenHost, status: Status) -> Status:
        """Log a poll's output and what there is beyond it; return the status of the last poll."""
        lost = status.phase == "lost"
        self._reason = self._reason or status.reason
        while True:
            if status.output:
                self._news_at = self._clock.monotonic()
                if self._log is not None:
                    self._log.write(status.output)
                self._offset += len(status.output)
                self._tail += status.output
                del self._tail[:-TAIL]
            if not status.more:
                return replace(status, phase="lost") if lost else status
            status = poll(host, self.run, self._offset)

    def _terminate(self, host: OpenHost, since: float) -> Result | None:
        now = self._clock.monotonic()
        if now - since > GRACE and self._killed_at is None:
            self._killed_at = now
        reason = f"it took longer than {self._step.timeout:g} s and was ended"
        left = stop(host, self.run, signal="TERM" if self._killed_at is None else "KILL", reason=reason)
        if left and (self._killed_at is None or now - self._killed_at <= KILL_TIMEOUT):
            return None
        status = self._fetch_output(host, probe(host, self.run, self._offset))
        if left:
            status = replace(status, phase="lost")
            self._reason = f"it took longer than {self._step.timeout:g} s, and SIGKILL has not ended {left} process(es)"
        return self._result(host, status)

    def _result(self, host: OpenHost, status: Status) -> Result:
        self.lost = status.phase == "lost"
        code = LOST if self.lost else status.code or 0
        if self._reason:
            code = code or TERMINATED
            self._append(self._reason)
        if code and (full := _full_disk(host, self.run, bytes(self._tail))):
            self._append(f"tpux: {full}")
        if code:
            self._line(f"exit {code}")
        return Result(code, bytes(self._tail))

    def _append(self, line: str) -> None:
        """Append a line of tpux' own to the output."""
        self._line(line)
        if self._tail and not self._tail.endswith(b"\n"):
            self._tail += b"\n"
        self._tail += line.encode() + b"\n"


def _full_disk(host: OpenHost, run: RemoteProcess, output: bytes) -> str:
    """Return which disk was full when a run had failed, "" if none was; also if it has deleted its directory."""
    listed = host.read((run.disks, 0))[0]
    return find_full(host.worker.index, (listed or b"").decode(errors="replace"), output)


def run_once(host: OpenHost, step: Sh, timeout: float) -> Result | None:
    """Run a short script that only reads in one exchange; no process of it is recorded, so it is not continued.

    Args:
        host: the worker.
        step: the script.
        timeout: seconds after which it is ended.

    Returns:
        The result; None if the script was ended.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    token = secrets.token_hex(8)
    # Not `(...) && code=0`: `set -e` has no effect in there. A syntax error stays within `eval`.
    script = f"(set -e; eval {shlex.quote(step.script)}) </dev/null 2>&1\nprintf '\\n{token} %d\\n' $?"
    command = f"exec timeout -k 5 {timeout:g} sh"
    if len(script) <= LONGEST_INLINE // 2:  # without the processes that pass input on
        answer = host.run(f"{command} -c {shlex.quote(script)}", timeout=timeout + 30.0)
    else:
        stdin = script.encode(errors="surrogateescape")
        answer = host.run(f"{command} -s", stdin=stdin, timeout=timeout + 30.0)
    end = re.search(rb"\n%s (\d+)\n" % token.encode(), answer.output)
    return Result(int(end[1]), answer.output[: end.start()]) if end else None


def run_at_once(host: OpenHost, step: Step, timeout: float) -> Result:
    """Run a step in one exchange; it is not recorded, so it is not continued.

    Args:
        host: the worker.
        step: the step; it only reads.
        timeout: seconds after which a script is ended, unless its own limit is shorter.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the worker could not store a file.
    """
    if isinstance(step, Put):
        host.put(step.source, step.remote, step.mode)
        return Result()
    limit = min(step.timeout, timeout)
    late = Result(TERMINATED, f"it took longer than {limit:g} s and was ended".encode())
    return run_once(host, step, limit) or late


def _heading(step: Sh) -> str:
    line, *more = step.script.strip().splitlines() or [""]
    return f"$ {line}" if len(line) <= LONGEST_LINE and not more else f"$ {line[:LONGEST_LINE]} ..."


class ReplayLog:
    """Appends to a log, except for what an interrupted writer with the same header has written already.

    Steps that are run again after the supervisor's death produce the same bytes from the start: as many as the log
    has after the header are skipped.

    Args:
        path: the log; created with mode 0600, in an existing directory.
        header: the first line of these steps' output, different for steps that are not run again but anew:
            `== attempt 2, try 1: setup venv ==`.
    """

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        line = header.encode() + b"\n"
        known = _bytes_after(path, line)
        self._known = known or 0
        self._at_line_start = True
        if known is None:
            self.write(line)

    @property
    def is_replayed(self) -> bool:
        """True while an interrupted writer has written more than this one has so far."""
        return self._known > 0

    def write(self, data: bytes) -> None:
        """Append that part of `data` that the log does not have."""
        if not data:
            return
        self._at_line_start = data.endswith(b"\n")
        skipped = min(self._known, len(data))
        self._known -= skipped
        if skipped < len(data):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(file, "wb", buffering=0) as log:
                rest = memoryview(data)[skipped:]
                while rest:
                    rest = rest[log.write(rest) or 0 :]

    def step(self, step: Sh, result: Result) -> None:
        """Append a step that has ended."""
        self.line(_heading(step))
        self.write(result.output)
        if result.code:
            self.line(f"exit {result.code}")

    def line(self, text: str) -> None:
        """Append a line of tpux' own, at the beginning of a line."""
        self.write(b"" if self._at_line_start else b"\n")
        self.write(text.encode(errors="replace") + b"\n")


def _bytes_after(path: Path, line: bytes) -> int | None:
    """Return how many bytes follow the last occurrence of a line in a file; None if it does not occur."""
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.rfind(b"\n" + line)
        if found >= 0:
            return len(content) - found - 1 - len(line)
        return len(content) - len(line) if content[: len(line)] == line else None
