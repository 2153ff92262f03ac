"""Run one command on many workers, streaming its output, with a timeout.

The command lives as long as its connection, as with ssh: one that outlives it (see tpux.remote) costs three times
as many processes on the worker.
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

from tpux import env
from tpux.errors import HostUnreachableError, TpuxError, UsageError
from tpux.lifecycle.connection import JobConnection
from tpux.model.host import Host
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.remote import process

TIMED_OUT = 124
UNREACHABLE = 255
_GRACE = 5.0
Listener = Callable[[int, bytes], None]

# The command is passed to bash unchanged: nothing in it can end the here-document. The exported variables identify
# its processes, so that they can be terminated.
_START = """
export {marker}={id} {home}="$(pwd -P)"
exec bash /dev/fd/3 </dev/null 3<<'{end}'
{script}
{end}
"""
_LONGEST = 64 * 1024  # bytes; `sh -c` takes 128 KiB


@dataclass
class Outcome:
    """How a command ended on one worker.

    Attributes:
        code: its exit code; 124 if it timed out, 255 if the worker is unreachable.
        problem: why the command has no exit code.
        output: its output.
    """

    code: int = UNREACHABLE
    problem: str = ""
    output: bytearray = field(default_factory=bytearray)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the outcome for `--json`; bytes that are not UTF-8 are replaced."""
        return {"code": self.code, "problem": self.problem, "output": self.output.decode(errors="replace")}


class RemoteCommand:
    """A bash script on some of a job's workers.

    Args:
        connection: the job's machines.
        workers: which workers.
        script: runs in the home directory.
        timeout: seconds after which it is terminated.
    """

    def __init__(self, connection: JobConnection, workers: Sequence[Worker], script: str, timeout: float) -> None:
        self._connection = connection
        self._workers = workers
        self._timeout = timeout
        self._script = script
        self._name, self._end = f"exec-{secrets.token_hex(4)}", f"tpux-{secrets.token_hex(16)}"
        if len(script.encode(errors="surrogateescape")) > _LONGEST:
            raise UsageError(
                f"the command has {len(script)} characters, more than a shell accepts",
                hint="copy it to the workers as a file first (tpux ssh-config, scp), and run that",
            )
        self._listener_lock = threading.Lock()
        self._listener_failed = False
        self._ended: SimpleQueue[Future[Outcome]] = SimpleQueue()

    def run(self, listen: Listener) -> dict[int, Outcome]:
        """Run the script on all workers in parallel.

        Args:
            listen: receives each worker's complete lines as they come; calls do not overlap.

        Returns:
            The outcome on each worker.

        Raises:
            OSError: `listen` raised it, such as for a closed stdout; the script was terminated first.
            KeyboardInterrupt: the user interrupted it; the script was terminated first.
        """
        # A thread for each worker while the command runs: on the shared threads of `fanout` some would wait for others.
        with ThreadPoolExecutor(len(self._workers), thread_name_prefix="exec") as pool:
            calls = {worker.index: pool.submit(self._run_on, worker, listen) for worker in self._workers}
            for call in calls.values():
                call.add_done_callback(self._ended.put)
            try:
                for _ in calls:
                    self._ended.get().result()
                return {index: call.result() for index, call in calls.items()}
            except (OSError, KeyboardInterrupt):
                pool.shutdown(wait=False, cancel_futures=True)
                self._connection.each(self._workers, self._terminate)
                raise

    def _run_on(self, worker: Worker, listen: Listener) -> Outcome:
        outcome, lines = Outcome(), _Lines()

        def receive(chunk: bytes, *, last: bool = False) -> None:
            outcome.output += chunk
            if whole := lines.complete(chunk, last=last):
                self._pass_on(listen, worker.index, whole)

        try:
            host = self._connection.open(worker)
            try:
                self._follow(host, outcome, receive)
            finally:
                host.close()
        except TpuxError as error:
            error.where = error.where.removeprefix(f"worker {worker.index}")
            outcome.problem = str(error)
        receive(b"", last=True)
        return outcome

    def _pass_on(self, listen: Listener, index: int, lines: bytes) -> None:
        """Call `listen`. Its error ends `run`, and does not pass through the transport: that would blame the worker."""
        with self._listener_lock:
            if self._listener_failed:
                return
            try:
                listen(index, lines)
            except OSError as error:
                self._listener_failed = True
                failed: Future[Outcome] = Future()
                failed.set_exception(error)
                self._ended.put(failed)

    def _follow(self, host: Host, outcome: Outcome, receive: Callable[[bytes], None]) -> None:
        began = time.monotonic()
        try:
            outcome.code = host.follow(self._start(host.worker), receive, timeout=self._timeout)
        except HostUnreachableError:
            if time.monotonic() - began < self._timeout:
                raise
            outcome.code = TIMED_OUT
            outcome.problem = f"it took longer than {self._timeout:g} s and was ended"
            self._terminate(host)

    def _start(self, worker: Worker) -> str:
        run_id = shlex.quote(self._run(worker).id)
        return _START.format(marker=env.RUN_ID, id=run_id, home=env.RUN_HOME, end=self._end, script=self._script)

    def _run(self, worker: Worker) -> process.RemoteProcess:
        job = self._connection.job
        return process.RemoteProcess(process.worker_key(job.key, worker.index), job.attempt, self._name)

    def _terminate(self, host: Host) -> None:
        deadline = time.monotonic() + _GRACE
        while process.stop(host, self._run(host.worker), signal="TERM" if time.monotonic() < deadline else "KILL"):
            time.sleep(0.2)


class _Lines:
    """Splits a stream into complete lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # joined once: a line of 50 MB has a thousand chunks

    def complete(self, data: bytes, *, last: bool) -> bytes:
        """Return the lines that this chunk completes, or all that is left if it is the last one."""
        end = len(data) if last else data.rfind(b"\n") + 1
        self._rest.append(data[:end] if end or last else data)
        if not end and not last:
            return b""
        lines = b"".join(self._rest)
        self._rest = [data[end:]]
        return lines


def worst(outcomes: Mapping[int, Outcome]) -> int:
    """Return the highest exit code."""
    return max((outcome.code for outcome in outcomes.values()), default=0)
