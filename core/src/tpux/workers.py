"""One command on many workers, each run by the run protocol: it outlives a broken connection, and can be ended."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from tpux import runs
from tpux.errors import HostUnreachableError, TpuxError
from tpux.held import HeldMachines
from tpux.hosts import Host
from tpux.machines import JsonValue, Worker
from tpux.programs import Command

TIMED_OUT = 124
UNREACHABLE = 255
_GRACE = 5.0
_FIRST_LOOK = 0.3
_PATIENCE = 60.0
Listener = Callable[[int, bytes], None]


@dataclass
class Outcome:
    """How a command ended on one worker.

    Attributes:
        code: its exit code; 124 where the time was up, 255 where the worker could not be reached.
        problem: why there is no code of its own.
    """

    code: int = UNREACHABLE
    problem: str = ""
    output: bytearray = field(default_factory=bytearray)

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it; what is no UTF-8 is replaced."""
        return {"code": self.code, "problem": self.problem, "output": self.output.decode(errors="replace")}


class Fleet:
    """A script on some of a job's workers.

    Args:
        held: the job's machines.
        workers: where.
        script: for bash, in the home directory.
        timeout: seconds after which it is ended.
    """

    def __init__(self, held: HeldMachines, workers: Sequence[Worker], script: str, timeout: float) -> None:
        self._held = held
        self._workers = {worker.index: worker for worker in workers}
        self._script = script
        self._timeout = timeout
        self._run = runs.Run(held.job.key, held.job.attempt, f"exec-{secrets.token_hex(4)}")
        self._stopped = threading.Event()
        self._printing = threading.Lock()

    def run(self, listen: Listener) -> dict[int, Outcome]:
        """Run it everywhere at once.

        Args:
            listen: hears each worker's whole lines as they come, never two at a time.

        Raises:
            KeyboardInterrupt: it was interrupted; the script was ended first.
        """
        # A thread each, for as long as the command runs: the shared ones of `fanout` would make some wait for others.
        with ThreadPoolExecutor(len(self._workers), thread_name_prefix="exec") as pool:
            calls = {index: pool.submit(self._on, worker, listen) for index, worker in self._workers.items()}
            try:
                return {index: call.result() for index, call in calls.items()}
            except KeyboardInterrupt:
                self._stopped.set()
                self._held.each(list(self._workers.values()), lambda host: runs.stop(host, self._run, signal="TERM"))
                raise

    def _on(self, worker: Worker, listen: Listener) -> Outcome:
        follower = _Follower(self._held, worker, self._run, self._script)
        try:
            self._follow(follower, lambda lines: listen(worker.index, lines))
        except TpuxError as error:
            error.where = error.where.removeprefix(f"worker {worker.index}")
            follower.outcome.problem = str(error)
        finally:
            follower.close()
        return follower.outcome

    def _follow(self, follower: _Follower, listen: Callable[[bytes], None]) -> None:
        lines, began, pause = _Lines(), time.monotonic(), 0.05
        while not self._stopped.is_set():
            status = follower.look()
            over = status.phase in {"ended", "lost"} and not status.more
            if whole := lines.whole(status.output, last=over):
                with self._printing:
                    listen(whole)
            if over:
                follower.ended(status)
                return
            if status.more:
                continue
            if (late := time.monotonic() - began - self._timeout) > 0:
                follower.stop(late=late > _GRACE)
                follower.outcome.problem = f"it took longer than {self._timeout:g} s and was ended"
            pause = 0.05 if status.output else min(pause * 1.5, 1.0)
            self._stopped.wait(pause)


class _Follower:
    """One worker's run, also over a broken connection."""

    def __init__(self, held: HeldMachines, worker: Worker, run: runs.Run, script: str) -> None:
        self.outcome = Outcome()
        self._held = held
        self._worker = worker
        self._run = run
        self._script = script
        self._host: Host | None = None
        self._started = False
        self._lost_since: float | None = None

    def look(self) -> runs.Status:
        """Start it, or look at it.

        Raises:
            HostUnreachableError: the worker never answered, or not for a minute.
        """
        try:
            status = self._look(self._host or self._open())
        except HostUnreachableError:
            now = time.monotonic()
            self._lost_since = self._lost_since or now
            if (self._host is None and not self._started) or now - self._lost_since > _PATIENCE:
                raise
            self.close()
            return runs.Status("running")
        self._lost_since = None
        self.outcome.output += status.output
        return status

    def stop(self, *, late: bool) -> None:
        """End it."""
        with suppress(HostUnreachableError):
            runs.stop(self._host or self._open(), self._run, signal="KILL" if late else "TERM")

    def ended(self, status: runs.Status) -> None:
        """Note how it ended."""
        if self.outcome.problem:
            self.outcome.code = TIMED_OUT
        elif status.phase == "lost":
            self.outcome.problem = status.reason
        else:
            self.outcome.code = status.code or 0

    def close(self) -> None:
        """Drop the connection."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _look(self, host: Host) -> runs.Status:
        offset = len(self.outcome.output)
        if self._started:
            status = runs.poll(host, self._run, offset)
            return runs.probe(host, self._run, offset) if status.phase == "absent" else status
        command = Command(("bash", self._run.script), self._run.script)
        status = runs.start(host, self._run, self._script, command, offset=offset, wait=_FIRST_LOOK)
        self._started = True
        return status

    def _open(self) -> Host:
        self._host = self._held.open(self._worker)
        return self._host


class _Lines:
    """Cuts a stream into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, data: bytes, *, last: bool) -> bytes:
        """The lines that are whole with this piece; all that is left where it is the last one."""
        data = self._rest + data
        end = len(data) if last else data.rfind(b"\n") + 1
        self._rest = data[end:]
        return data[:end]


def worst(outcomes: Mapping[int, Outcome]) -> int:
    """The exit code for all."""
    return max((outcome.code for outcome in outcomes.values()), default=0)
