"""One script of a walk on its worker: started, followed, ended when it takes too long."""

from __future__ import annotations

from dataclasses import replace

from tpux.clock import Clock
from tpux.hosts import Host
from tpux.programs import Command
from tpux.runs.replay import ReplayLog
from tpux.runs.run import Run, Status
from tpux.runs.starting import poll, probe, start
from tpux.runs.stopping import stop
from tpux.steps import Result, Sh

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


class Progress:
    """How far a step has come.

    Args:
        run: where it runs.
        step: what is run.
        log: where its first line and its output go, once.
        clock: tells how long it has taken.

    Attributes:
        lost: nobody knows how it ended, so that not even `may_fail` lets the walk go on.
    """

    def __init__(self, run: Run, step: Sh, log: ReplayLog, clock: Clock) -> None:
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

    def turn(self, host: Host, wait: float) -> Result | None:
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
