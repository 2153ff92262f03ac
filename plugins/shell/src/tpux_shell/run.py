"""Run one command on many workers, streaming its output, with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

from tpux import JsonValue, TpuxError, Worker
from tpux.api import JobConnection

TIMED_OUT = 124
UNREACHABLE = 255
LONGEST_LINE = 1024 * 1024
"""Bytes of a line that are kept until its end has come: a line may be as long as a file."""
Listener = Callable[[int, bytes], None]


@dataclass
class Outcome:
    """How a command ended on one worker.

    Attributes:
        code: its exit code; 124 if it timed out, 255 if the worker is unreachable.
        problem: why the command has no exit code.
        output: its output, unless that was passed on.
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
        script: the script.
        timeout: seconds after which it is terminated.
        beside: it runs where the job's program runs, and not in the home directory.
    """

    def __init__(
        self, connection: JobConnection, workers: Sequence[Worker], script: str, timeout: float, *, beside: bool
    ) -> None:
        self._connection = connection
        self._workers = workers
        self._timeout = timeout
        self._script = connection.script(script, beside=beside)
        self._listener_lock = threading.Lock()
        self._listener_failed = False
        self._ended: SimpleQueue[Future[Outcome]] = SimpleQueue()

    def run(self, listen: Listener | None = None) -> dict[int, Outcome]:
        """Run the script on all workers in parallel.

        Args:
            listen: receives each worker's lines as they come, complete but for those longer than `LONGEST_LINE`, whose
                pieces end with no newline; calls do not overlap. Without it, the output is kept.

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
                self._connection.each(self._workers, self._script.terminate)
                raise

    def _run_on(self, worker: Worker, listen: Listener | None) -> Outcome:
        outcome, lines = Outcome(), _Lines()

        def receive(chunk: bytes, *, last: bool = False) -> None:
            if listen is None:
                outcome.output += chunk
            elif whole := lines.complete(chunk, last=last):
                self._pass_on(listen, worker.index, whole)

        try:
            host = self._connection.open(worker)
            try:
                outcome.code = self._script.follow(host, receive, timeout=self._timeout)
            finally:
                host.close()
        except TimeoutError as error:
            outcome.code, outcome.problem = TIMED_OUT, str(error)
        except TpuxError as error:
            error.where = error.where.removeprefix(f"worker {worker.index}")
            outcome.problem = str(error)
        except OSError as error:  # of this worker's connection: the others continue
            outcome.problem = f"{type(error).__name__}: {error}".removesuffix(": ")
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


class _Lines:
    """Splits a stream into complete lines, and a line that is longer than `LONGEST_LINE` into pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._continues = False
        """The last piece was not the end of its line."""

    def complete(self, data: bytes, *, last: bool) -> bytes:
        """Return the lines that this chunk completes, or all there is if it is the last one or its line too long.

        What does not end with a newline is continued by what is returned next.
        """
        newline = data.rfind(b"\n") + 1
        end = newline and len(self._rest) + newline
        self._rest += data
        if last and (self._rest or self._continues) and not self._rest.endswith(b"\n"):
            self._rest += b"\n"
        if last or len(self._rest) - end > LONGEST_LINE:
            end = len(self._rest)
        lines = bytes(self._rest[:end])
        del self._rest[:end]
        self._continues = not lines.endswith(b"\n") if lines else self._continues
        return lines


def worst(outcomes: Mapping[int, Outcome]) -> int:
    """Return the highest exit code."""
    return max((outcome.code for outcome in outcomes.values()), default=0)
