"""Transport `local`: `LocalHost` runs commands in a worker's home directory on this machine."""

from __future__ import annotations

import io
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from tpux import CHUNK_SIZE, HostUnreachableError, JsonValue, Result, TpuxError, Worker, plain_reason

VARIABLES = ("PATH", "LANG", "USER")
"""Variables of the shell that creates a job, which its programs get."""
HOME_VARIABLE = "TPUX_LOCAL_HOME"
"""Environment variable of every process of a worker; its value is the worker's home directory."""


class LocalHost:
    """A worker on this machine. Its processes have a clean environment with the worker's home directory as HOME.

    Uses subprocess instead of invoke, which writes stdin one byte every 10 ms (`Runner.input_sleep`) and decodes
    the output; with it `true` took 12 ms instead of 0.8 ms.

    Args:
        worker: `details["home"]` is its home directory.
        resolved: PATH, LANG and USER of its processes, as far as the job's `resolve` found them.
    """

    def __init__(self, worker: Worker, resolved: Mapping[str, JsonValue]) -> None:
        self.worker = worker
        self._resolved = {name: value for name, value in resolved.items() if isinstance(value, str)}
        self.home = self.local_home = Path(worker.details["home"])
        self._followed: set[subprocess.Popen[bytes]] = set()

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait until it ends."""
        return self._run(script, stdin, timeout, None)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script, pass its output to `listen` as it arrives, and return the exit code."""
        return self._run(script, stdin, timeout, listen).code

    def _run(self, script: str, stdin: bytes, timeout: float, listen: Callable[[bytes], None] | None) -> Result:
        try:
            process = subprocess.Popen(
                ["sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=self.environment(),
                start_new_session=True,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing() from error
        with process:
            if listen:
                self._followed.add(process)
            try:
                output = (
                    _communicate_streaming(process, stdin, timeout, listen)
                    if listen
                    else process.communicate(stdin, timeout)[0]
                )
            except BaseException as error:
                _kill(process)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise self._unreachable(f"no response within {timeout:.0f} s") from error
            finally:
                self._followed.discard(process)
        # Shells report a process ended by signal N as exit code 128 + N.
        return Result(process.returncode if process.returncode >= 0 else 128 - process.returncode, output)

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) to the worker, atomically."""
        self._check()
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as original:
            try:
                _write(original, self._path(remote), mode)
            except OSError as error:
                self._check()
                reason = plain_reason(error)
                raise TpuxError(f"put {remote}: {reason}", where=f"worker {self.worker.index}") from error

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker."""
        self._check()
        shutil.copyfile(self._path(remote), local)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read each file from the given offset. Starts no process, because a running job is polled every second."""
        try:
            home = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing() from error
        try:
            return [_read(home, path.removeprefix("~/"), offset) for path, offset in pieces]
        finally:
            os.close(home)

    def close(self) -> None:
        """End a script that another thread follows: it is of no use to anybody."""
        for process in [*self._followed]:
            _kill(process)

    def _path(self, remote: str) -> Path:
        return self.home / remote.removeprefix("~/")

    def environment(self) -> dict[str, str]:
        """Return the environment of the worker's processes."""
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "USER": "root",
            **self._resolved,
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "TPUX_MACHINE_DIR": str(self.home),  # each worker counts as a machine
            HOME_VARIABLE: str(self.home),
        }

    def _check(self) -> None:
        if not self.home.is_dir():
            raise self._missing()

    def _missing(self) -> HostUnreachableError:
        return self._unreachable(f"there is no directory {self.home}")

    def _unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(message, where=f"worker {self.worker.index}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # else its id may be another one's
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)


def _write(original: IO[bytes], target: Path, mode: int) -> None:
    """Write a file, which appears complete or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as copy:
            shutil.copyfileobj(original, copy, CHUNK_SIZE)
            os.fchmod(copy.fileno(), mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink()
        raise


def _communicate_streaming(
    process: subprocess.Popen[bytes], stdin: bytes, timeout: float, listen: Callable[[bytes], None]
) -> bytes:
    """Pass the output of a process on until it ends. Returns b'', since no output remains.

    Args:
        process: the process, whose stdin and stdout are pipes.
        stdin: what it reads.
        timeout: seconds.
        listen: called with each piece of output.
    """
    assert process.stdin is not None  # noqa: S101  (both are pipes)
    assert process.stdout is not None  # noqa: S101
    os.set_blocking(process.stdin.fileno(), False)
    deadline, left = time.monotonic() + timeout, memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while events := selector.select(max(0.0, deadline - time.monotonic())):
            for key, _ in events:
                if key.fileobj is process.stdin:
                    with suppress(BrokenPipeError):
                        left = left[os.write(key.fd, left[:CHUNK_SIZE]) :]
                        if left:
                            continue
                    selector.unregister(process.stdin)
                    process.stdin.close()
                elif piece := os.read(key.fd, CHUNK_SIZE):
                    listen(piece)
                else:
                    process.stdin.close()
                    process.wait(max(0.0, deadline - time.monotonic()))
                    return b""
    raise subprocess.TimeoutExpired(process.args, timeout)


def _read(home: int, path: str, offset: int) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY, dir_fd=home)
    except FileNotFoundError:
        return None
    try:
        # Reads only the bytes that exist, because pread allocates a buffer of the requested size.
        return os.pread(file, min(CHUNK_SIZE, max(0, os.fstat(file).st_size - offset)), offset)
    finally:
        os.close(file)
