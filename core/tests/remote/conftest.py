"""A worker that is a directory on this machine, with real processes, and helpers for tests."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpux.errors import HostUnreachableError
from tpux.model.host import CHUNK_SIZE
from tpux.model.job import Command
from tpux.model.machines import Worker
from tpux.model.steps import Result
from tpux.remote.process import RemoteProcess, Status, poll, start, stop

MARKER = "TPUX_TEST_HOME"


def stubborn(on_term: str) -> str:
    """Return the script of a program that prints "set", and executes `on_term` on SIGTERM; it replaces its shell."""
    code = (
        f"import signal, sys, time\nsignal.signal(15, lambda *_: {on_term})\nprint('set', flush=True)\ntime.sleep(100)"
    )
    return shlex.join(["exec", sys.executable, "-c", code])


@dataclass
class HereHost:
    """A host in a directory. `timeout` cuts each call's connection after so many seconds; `chunk` limits each read."""

    home: Path
    timeout: float | None = None
    chunk: int = CHUNK_SIZE
    path: str = os.environ["PATH"]
    calls: int = 0
    worker: Worker = field(default_factory=lambda: Worker(0))

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        self.calls += 1
        environment = {"PATH": self.path, "HOME": str(self.home), MARKER: str(self.home)}
        with subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.home,
            env=environment,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(stdin, self.timeout or timeout)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise HostUnreachableError("cut") from error
        return Result(process.returncode, output)

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        self.calls += 1
        path = self.home / remote
        path.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        path.chmod(mode)

    def get(self, remote: str, local: Path) -> None:
        local.write_bytes((self.home / remote).read_bytes())

    def read(self, *files: tuple[str, int]) -> list[bytes | None]:
        self.calls += 1
        return [self._read(path, offset) for path, offset in files]

    def _read(self, path: str, offset: int) -> bytes | None:
        try:
            with (self.home / path).open("rb") as file:
                file.seek(offset)
                return file.read(self.chunk)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        pass


@dataclass
class Here:
    """Helpers for tests on such a worker."""

    host: HereHost

    stubborn = staticmethod(stubborn)

    @property
    def home(self) -> Path:
        return self.host.home

    def run(self, name: str = "command", attempt: int = 1) -> RemoteProcess:
        return RemoteProcess("ab12-me-000001", attempt, name)

    def start(
        self,
        script: str | bytes,
        run: RemoteProcess | None = None,
        *,
        argv: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        offset: int = 0,
        wait: float = 10.0,
    ) -> Status:
        run = run or self.run()
        command = Command(argv or ("sh", "-e", run.script), run.script, env or {})
        return start(self.host, run, script, command, offset=offset, wait=wait)

    def start_stubborn(self, on_term: str) -> RemoteProcess:
        """Start a program that executes `on_term` on SIGTERM, and wait until it is ready for it."""
        run = self.run()
        self.start(stubborn(on_term), run, wait=0.05)
        self.until(lambda: poll(self.host, run, 0).output)
        return run

    def start_and_wait(self, script: str, run: RemoteProcess | None = None) -> RemoteProcess:
        """Start a program that runs until it is stopped, and wait until its process `sleep` is running."""
        run = run or self.run()
        self.start(script, run, wait=0.05)
        self.until(lambda: self.pids(script[script.index("sleep") :].replace(" ", "\0")))
        return run

    def runner(self, run: RemoteProcess) -> int:
        """Return the process id of a run's runner, once its program has begun."""
        session = self.file(run, "session")
        self.until(lambda: session.exists() and session.read_text().strip())
        [pid] = self.pids("/runner\0")
        return pid

    def kill(self, run: RemoteProcess) -> None:
        """End a run with SIGKILL and wait for it without a time limit."""
        self.until(lambda: stop(self.host, run, signal="KILL") == 0)

    def file(self, run: RemoteProcess, name: str) -> Path:
        return self.home / run.directory / name

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not true within {seconds} s"
            time.sleep(0.01)

    def follow(self, run: RemoteProcess) -> tuple[int | None, bytes]:
        """Return a run's exit code and all of its output once it has ended."""
        output = bytearray()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = poll(self.host, run, len(output))
            output += status.output
            if status.phase == "ended" and not status.more:
                return status.code, bytes(output)
            time.sleep(0 if status.more else 0.01)
        raise AssertionError("it did not end")

    def pids(self, text: str = "") -> list[int]:
        """Return the processes of this worker whose command line contains `text`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    marked = f"{MARKER}={self.home}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    if marked and text.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    home = tmp_path / "home"
    home.mkdir()
    here = Here(HereHost(home))
    yield here
    while left := here.pids():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
