"""One command on many workers: told as it comes, ended when it takes too long.

A command here lives as long as its connection, as with ssh: a run of the run protocol, which outlives it, costs
three times as many processes on the worker (see tpux.remote for what must outlive a connection).
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tpux import env
from tpux.errors import HostUnreachableError, TpuxError, UsageError
from tpux.lifecycle.connection import JobConnection
from tpux.plugin.host import Host
from tpux.plugin.machines import JsonValue, Worker
from tpux.remote import process

TIMED_OUT = 124
UNREACHABLE = 255
_GRACE = 5.0
Listener = Callable[[int, bytes], None]

# The command is bash's script, as it is: nothing in it can end the here-document. Its processes carry the mark
# by which they are ended.
_START = """
export {mark}={id} {home}="$(pwd -P)"
exec bash /dev/fd/3 </dev/null 3<<'{end}'
{script}
{end}
"""
_LONGEST = 64 * 1024  # of what `sh -c` can take, 128 KiB


@dataclass
class Outcome:
    """How a command ended on one worker.

    Attributes:
        code: its exit code; 124 where the time was up, 255 where the worker could not be reached.
        problem: why there is no code of its own.
        output: what it wrote.
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

    def __init__(self, held: JobConnection, workers: Sequence[Worker], script: str, timeout: float) -> None:
        self._held = held
        self._workers = workers
        self._timeout = timeout
        self._run = process.RemoteProcess(held.job.key, held.job.attempt, f"exec-{secrets.token_hex(4)}")
        self._start = _START.format(
            mark=env.RUN_ID,
            id=shlex.quote(self._run.id),
            home=env.RUN_HOME,
            end=f"tpux-{secrets.token_hex(16)}",
            script=script,
        )
        if len(self._start.encode(errors="surrogateescape")) > _LONGEST:
            raise UsageError(
                f"the command has {len(script)} characters, more than a shell can be given",
                hint="copy it to the workers as a file first (tpux ssh-config, scp), and run that",
            )
        self._telling = threading.Lock()

    def run(self, listen: Listener) -> dict[int, Outcome]:
        """Run it everywhere at once.

        Args:
            listen: hears each worker's whole lines as they come, never two at a time.

        Raises:
            KeyboardInterrupt: it was interrupted; the script was ended first.
        """
        # A thread each, for as long as the command runs: the shared ones of `fanout` would make some wait for others.
        with ThreadPoolExecutor(len(self._workers), thread_name_prefix="exec") as pool:
            calls = {worker.index: pool.submit(self._on, worker, listen) for worker in self._workers}
            try:
                return {index: call.result() for index, call in calls.items()}
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                self._held.each(self._workers, self._end)
                raise

    def _on(self, worker: Worker, listen: Listener) -> Outcome:
        outcome, lines = Outcome(), _Lines()

        def hear(piece: bytes, *, last: bool = False) -> None:
            outcome.output += piece
            if whole := lines.whole(piece, last=last):
                with self._telling:
                    listen(worker.index, whole)

        try:
            host = self._held.open(worker)
            try:
                self._follow(host, outcome, hear)
            finally:
                host.close()
        except TpuxError as error:
            error.where = error.where.removeprefix(f"worker {worker.index}")
            outcome.problem = str(error)
        hear(b"", last=True)
        return outcome

    def _follow(self, host: Host, outcome: Outcome, hear: Callable[[bytes], None]) -> None:
        began = time.monotonic()
        try:
            outcome.code = host.follow(self._start, hear, timeout=self._timeout)
        except HostUnreachableError:
            if time.monotonic() - began < self._timeout:
                raise
            outcome.code = TIMED_OUT
            outcome.problem = f"it took longer than {self._timeout:g} s and was ended"
            self._end(host)

    def _end(self, host: Host) -> None:
        deadline = time.monotonic() + _GRACE
        while process.stop(host, self._run, signal="TERM" if time.monotonic() < deadline else "KILL"):
            time.sleep(0.2)


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
