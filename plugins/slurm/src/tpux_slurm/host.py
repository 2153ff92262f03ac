"""Transport `slurm`: a shell that the keeper of a node has started, over one srun step that is kept open."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile

from tpux import HostUnreachableError, Job, Worker
from tpux_slurm.commands import environment
from tpux_slurm.scripts import PATH, RELAY, step
from tpux_worker_tools.relay import RelayHost

OPENING = 30.0
"""Seconds until a step has started and the keeper has answered."""
_PIECE = 64 * 1024


class Step:
    """The standard streams of a step: the `Connection` to a shell of the keeper.

    Args:
        worker: the node.
        job: the job, with the variables that srun needs.

    Raises:
        EOFError: there is no srun.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        variables = environment(job.resolved.get("slurm", {}))
        relay = ["--unbuffered", "/bin/sh", "-c", RELAY, "relay", worker.details["directory"], PATH]
        argv = [*step(worker.details["job"], 1, worker.address), *relay]
        argv[0] = shutil.which(argv[0], path=variables["PATH"]) or argv[0]
        self.ended = ""
        self._out = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=variables,
                start_new_session=True,  # Ctrl-C is for the command that uses the connection
            )
        except OSError as error:
            self._errors.close()
            raise EOFError(f"srun: {error.strerror}") from error
        assert self._process.stdin is not None  # noqa: S101  (both are pipes)
        assert self._process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def unsent(self) -> int:
        """Return how many bytes have not been sent yet."""
        return len(self._out)

    def send(self, data: bytes) -> None:
        """Send what the pipe has room for, and the rest in `wait`."""
        self._out += data
        try:
            while self._out and not self.ended:
                del self._out[: os.write(self._stdin.fileno(), self._out[:_PIECE])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.ended = self._words()

    def wait(self, timeout: float) -> bool:
        """Wait until something has arrived or could be sent, or srun has ended."""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if self._out:
            poll.register(self._stdin, select.POLLOUT)
        ready = poll.poll(max(0.0, timeout) * 1000)
        self.send(b"")
        return bool(ready)

    def take(self) -> bytes:
        """Return what has arrived."""
        if self._stdout.closed:
            return b""
        try:
            piece = os.read(self._stdout.fileno(), 16 * _PIECE)
        except BlockingIOError:
            return b""
        if not piece:
            self.ended = self.ended or self._words()
        return piece

    def close(self) -> None:
        """Close the connection: what the script at the other end has started goes on."""
        if self._stdout.closed:
            return
        self.ended = self.ended or "the connection was closed"
        with contextlib.suppress(OSError):
            self._stdin.close()
        for end, patience in ((self._process.terminate, 0.5), (self._process.kill, 2.0), (self._process.kill, 2.0)):
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                end()
        self._stdout.close()
        self._errors.close()

    def _words(self) -> str:
        """Return what srun has said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = "; ".join(line.strip() for line in lines if line.strip())[-400:]
        return said or f"srun has ended with exit code {self._process.returncode}"


class SlurmHost(RelayHost):
    """A node of a Slurm job.

    Args:
        worker: `address` is the node; `details` has `job` and `directory`.
        job: the job that it belongs to.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        super().__init__(worker, OPENING)
        self._job = job

    def connect(self) -> Step:
        """Start a step."""
        return Step(self.worker, self._job)

    def unreachable(self, message: str) -> HostUnreachableError:
        """Return the error that names the node."""
        return HostUnreachableError(f"{self.worker.address}: {message}", where=f"worker {self.worker.index}")
