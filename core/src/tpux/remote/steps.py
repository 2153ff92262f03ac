"""Taking a plugin's steps on one worker, so that it can be broken off anywhere and taken again."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

from tpux.clock import Clock, SystemClock
from tpux.plugin.host import Host
from tpux.plugin.job import Command
from tpux.plugin.steps import Put, Result, Sh, Step
from tpux.remote.process import RemoteProcess, Status, poll, probe, start, stop

_WAIT = 1.0


class StepRunner:
    """A generator of steps, driven on one worker.

    Each script is a run of its own. After the supervisor's death the generator is run again from its
    start: a step that has an exit code there answers from the worker's disk, one that runs is attached
    to, and files are copied again. Scripts are logged, so a step must not contain secrets; those
    travel in a `Put`.

    Args:
        host: the worker; may be replaced between two turns.
        steps: what a plugin's hook gave.
        name: the run of a step, from its number and the step, the same each time.
        log: where the scripts' first lines and their output go.
        clock: tells how long a step has taken.

    Attributes:
        failed: the step that ended the walk and how, None where none did.
        value: what the generator returned.
    """

    def __init__(
        self,
        host: Host,
        steps: Generator[Step, Result, object],
        name: Callable[[int, Sh], RemoteProcess],
        log: ReplayLog,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.failed: tuple[Step, Result] | None = None
        self.value: object = None
        self._steps = steps
        self._name = name
        self._log = log
        self._clock = clock or SystemClock()
        self._number = 0
        self._step: Step | None = None
        self._progress: StepProcess | None = None

    @property
    def run(self) -> RemoteProcess | None:
        """The run of the step that is under way, None between two."""
        return self._progress.run if self._progress else None

    def advance(self, patience: float) -> bool:
        """Take steps for `patience` seconds, or until one takes longer; whether the walk has ended.

        Raises:
            HostUnreachableError: the worker did not answer; the next turn goes on from here.
            TpuxError: the worker could not start a step.
            Exception: what the generator raised.
        """
        deadline = self._clock.now() + patience
        if self._number == 0:
            self._go_on(None)
        while self._step is not None:
            result = self._take(self._step, deadline - self._clock.now())
            if result is None:
                break
            self._answer(self._step, result)
            if self._clock.now() >= deadline:
                break
        return self._step is None

    def _take(self, step: Step, wait: float) -> Result | None:
        if isinstance(step, Put):
            self.host.put(step.source, step.remote, step.mode)
            self._log.line(f"put {step.remote}")
            return Result()
        if self._progress is None:
            self._progress = StepProcess(self._name(self._number, step), step, self._log, self._clock)
        return self._progress.poll(self.host, min(max(wait, 0.0), _WAIT))

    def _answer(self, step: Step, result: Result) -> None:
        """Let the generator go on with the result, unless it is a failure that it did not allow for."""
        allowed = isinstance(step, Sh) and step.may_fail and not (self._progress and self._progress.lost)
        self._progress = None
        if result.ok or allowed:
            self._go_on(result)
        else:
            self.failed, self._step = (step, result), None
            self._steps.close()

    def _go_on(self, result: Result | None) -> None:
        self._number += 1
        self._step = None  # where the generator raises, the walk has ended
        try:
            self._step = next(self._steps) if result is None else self._steps.send(result)
        except StopIteration as end:
            self.value = end.value


KEPT = 1024 * 1024
"""How many bytes of a step's output, the last of it, its `Result` has; the log has all."""
SILENCE = 20.0
"""Seconds without news after which a step is probed: its runner may have been killed."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a step that took too long."""
LOST = 255
"""The code of a step that never said how it ended."""
TERMINATED = 143
"""The code of a step that took too long and then exited with 0: 128 and SIGTERM, as a shell tells it."""
_SHOWN = 200


class StepProcess:
    """How far a step has come.

    Args:
        run: where it runs.
        step: what is run.
        log: where its first line and its output go, once.
        clock: tells how long it has taken.

    Attributes:
        lost: nobody knows how it ended, so that not even `may_fail` lets the walk go on.
    """

    def __init__(self, run: RemoteProcess, step: Sh, log: ReplayLog, clock: Clock) -> None:
        self.run = run
        self.lost = False
        self._step = step
        self._log = log
        self._clock = clock
        self._started = False
        self._began = self._looked = clock.now()
        self._ending: float | None = None
        self._reason = ""
        self._offset = 0
        self._tail = bytearray()
        log.line(f"$ {_first_line(step.script)}")

    def poll(self, host: Host, wait: float) -> Result | None:
        """Start it or look at it; its result once it has ended.

        Args:
            host: the worker.
            wait: how many seconds the first look may wait for the end.
        """
        if self._ending is not None:
            return self._end(host)
        status = self._read(host, self._look(host, wait))
        if status.phase in {"ended", "lost"}:
            return self._result(status)
        if self._clock.now() - self._began > self._step.timeout:
            self._ending = self._clock.now()
        return None

    def _look(self, host: Host, wait: float) -> Status:
        if not self._started:
            command = Command(("sh", "-e", self.run.script), self.run.script)
            status = start(host, self.run, self._step.script, command, offset=self._offset, wait=wait)
            self._started = True
            self._began = self._clock.now() - status.age
            return status
        if self._clock.now() - self._looked < SILENCE:
            status = poll(host, self.run, self._offset)
            if status.phase != "absent":
                return status
        self._looked = self._clock.now()
        status = probe(host, self.run, self._offset)
        if status.phase == "absent":
            return replace(status, phase="lost", reason="the run is no longer on the worker")
        return status

    def _read(self, host: Host, status: Status) -> Status:
        """Take a look's output, and what there is beyond its piece; the last look's status."""
        lost = status.phase == "lost"
        self._reason = self._reason or status.reason
        while True:
            if status.output:
                self._looked = self._clock.now()
                self._log.write(status.output)
                self._offset += len(status.output)
                self._tail += status.output
                del self._tail[:-KEPT]
            if not status.more:
                return replace(status, phase="lost") if lost else status
            status = poll(host, self.run, self._offset)

    def _end(self, host: Host) -> Result | None:
        """End a step that has taken too long."""
        late = self._clock.now() - (self._ending or 0.0) > GRACE
        reason = f"it took longer than {self._step.timeout:g} s and was ended"
        if stop(host, self.run, signal="KILL" if late else "TERM", reason=reason):
            return None
        return self._result(self._read(host, probe(host, self.run, self._offset)))

    def _result(self, status: Status) -> Result:
        self.lost = status.phase == "lost"
        code = LOST if self.lost else status.code or 0
        if self._reason:
            code = code or TERMINATED
            self._log.line(self._reason)
            if self._tail and not self._tail.endswith(b"\n"):
                self._tail += b"\n"
            self._tail += self._reason.encode() + b"\n"
        if code:
            self._log.line(f"exit {code}")
        return Result(code, bytes(self._tail))


def _first_line(script: str) -> str:
    line, *more = script.strip().splitlines() or [""]
    return line if len(line) <= _SHOWN and not more else f"{line[:_SHOWN]} ..."


class ReplayLog:
    """Appends to one log; what an interrupted writer with the same header has written is not written again.

    A walk that is taken again after the supervisor's death brings forth the same bytes from the start:
    as many as are there after the header are passed over.

    Args:
        path: the log; made with mode 0600, in a directory that is there.
        header: the line that each walk begins with, another one for each that is a walk of its own:
            `== attempt 2, try 1: setup venv ==`.
    """

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        line = header.encode() + b"\n"
        self._known = _after(path, line)
        self._at_line_start = True
        if self._known is None:
            self._known = 0
            self.write(line)

    def write(self, data: bytes) -> None:
        """Append what is new of `data`."""
        if not data:
            return
        self._at_line_start = data.endswith(b"\n")
        known = min(self._known or 0, len(data))
        self._known = (self._known or 0) - known
        if known < len(data):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(file, "wb", buffering=0) as log:
                rest = memoryview(data)[known:]
                while rest:
                    rest = rest[log.write(rest) or 0 :]

    def line(self, text: str) -> None:
        """Append a line of tpux' own, at the beginning of a line."""
        self.write(b"" if self._at_line_start else b"\n")
        self.write(text.encode(errors="replace") + b"\n")


def _after(path: Path, line: bytes) -> int | None:
    """How many bytes come after the last such line of a file; None where there is none."""
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.rfind(b"\n" + line)
        if found >= 0:
            return len(content) - found - 1 - len(line)
        return len(content) - len(line) if content[: len(line)] == line else None
