"""The fixture `tpux`: the command with a store in a temporary directory and its own supervisor."""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

from tests.command_runner import run_command
from tests.faulty.preload import Faults
from tests.fork_server import ForkServer

TIMEOUT = 120.0
ENVIRON = dict(os.environ)


def build_wheel(directory: Path, dist: str, code: str, entry_points: str) -> Path:
    """Build the wheel of a dist with one module, without a build backend, which would have to be downloaded.

    Args:
        directory: where the wheel is written.
        dist: its name; the module is named after it.
        code: the module.
        entry_points: the content of `entry_points.txt`.
    """
    name = dist.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tpux-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    hashes = {path: base64.urlsafe_b64encode(digest).decode().rstrip("=") for path, digest in digests.items()}
    record = "".join(f"{path},sha256={hashes[path]},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@cache
def fork_server() -> ForkServer:
    server = ForkServer(ENVIRON)
    atexit.register(server.close)
    return server


@dataclass
class Tpux:
    """The command `tpux` of an installation, with its own store and working directory."""

    home: Path
    work: Path
    env: dict[str, str]
    python: Path = Path(sys.executable)

    def __call__(self, *args: str, code: int | None = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        done = self._run(args, stdin)
        assert not re.search("Traceback|a bug in tpux", done.stderr), done.stderr
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log()}"
        return done

    def _run(self, args: tuple[str, ...], stdin: str | None) -> subprocess.CompletedProcess[str]:
        own = self.python == Path(sys.executable) and args[:2] != ("plugins", "check")  # which runs pytest
        if own and (server := fork_server()).serves(self.env):
            return server.run(args, cwd=self.work, env=self.env, stdin=stdin, timeout=200)
        return subprocess.run(
            [self.python, "-m", "tpux.cli.main", *args],
            cwd=self.work,
            env=self.env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=200,
        )

    def popen(self, *args: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, "-m", "tpux.cli.main", *args],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )

    def json(self, *args: str) -> object:
        return json.loads(self(*args, "--json").stdout)

    def config(self, text: str, name: str = "job.yaml") -> str:
        (self.work / name).write_text(text)
        return name

    def create(self, text: str, *overrides: str) -> str:
        return str(self.json("create", self.config(text), *overrides)["id"])  # type: ignore[index]

    def plugin(self, dist: str, code: str, *, entries: str, group: str = "tpux") -> Path:
        """Build a wheel, install it into a directory of PYTHONPATH, and return the path of its module there."""
        site = self.work.parent / "site"
        wheel = build_wheel(self.work.parent, dist, dedent(code), f"[{group}]\n{entries}\n")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        module = site / f"{dist.replace('-', '_')}.py"
        others = self.env.get("PYTHONPATH", "").split(os.pathsep)
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([str(site), *others])))
        return module

    def until_done(self) -> None:
        """Wait until the supervisor has ended: jobs that have ended have released their machines and their secrets."""
        self.until(lambda: self.supervisor() is None, "for the supervisor to end")

    def show(self, job: str) -> dict[str, object]:
        shown = self.json("show", job)
        assert isinstance(shown, dict)
        return shown

    def directory(self, job: str) -> Path:
        return next(self.home.glob(f"jobs/*/{job}"))

    def machines(self, job: str) -> Path:
        """Return the directory of a local job's current workers."""
        return max((self.directory(job) / "machines").glob("[0-9]*"))

    def output(self, job: str, worker: int = 0, attempt: int = 1) -> bytes:
        return (self.directory(job) / f"logs/attempt-{attempt}/command_worker_{worker}.log").read_bytes()

    def output_so_far(self, job: str, worker: int = 0, attempt: int = 1) -> bytes:
        """Return the output so far, empty if there is none yet."""
        try:
            return self.output(job, worker, attempt)
        except (FileNotFoundError, StopIteration):
            return b""

    def events(self, job: str, kind: str) -> list[dict[str, object]]:
        lines = (self.directory(job) / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def until(self, what: Callable[[], object], why: str = "") -> None:
        deadline, pause = time.monotonic() + TIMEOUT, 0.05
        while not what():
            assert time.monotonic() < deadline, f"timed out after {TIMEOUT} s {why}\n{self.log()}"
            time.sleep(pause)
            pause = min(pause * 1.2, 0.4)  # many conditions are commands, which cost CPU

    def until_state(self, job: str, *states: str) -> None:
        path = self.directory(job) / "state.json"
        self.until(lambda: json.loads(path.read_text())["state"]["state"] in states, f"for {states}")

    def supervisor(self) -> int | None:
        status = self.json("supervisor", "status")
        assert isinstance(status, dict)
        pid = status["pid"]
        return pid if isinstance(pid, int) else None

    @staticmethod
    def alive(pid: int) -> bool:
        try:
            return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False

    def kill_supervisor(self) -> None:
        """Kill the supervisor with SIGKILL and wait until its process has ended."""
        seen: list[int | None] = [None]

        def running() -> int | None:
            seen.append(self.supervisor())
            return seen[-1]

        self.until(running, "for a supervisor to kill")
        pid = seen[-1]
        assert pid is not None
        with suppress(ProcessLookupError):  # it may have exited just now
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.alive(pid), "for the killed supervisor to be gone")

    def log(self) -> str:
        logs = list(self.home.glob("supervisor/*/log"))
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in logs)

    def close(self) -> None:
        """Kill the supervisor and all processes of the local workers."""
        _kill(_processes_below(self.home))
        for file in self.home.glob("jobs/*/*/machines/*/*/.tpux/runs/*/*/command/cgroup"):
            with suppress(OSError):  # their runners, which were killed, would have removed them
                Path(file.read_text().strip()).rmdir()


class CommandRunner(Tpux):
    """The command in the test's own process, for commands that start no job; see `tests.command_runner`."""

    def _run(self, args: tuple[str, ...], stdin: str | None) -> subprocess.CompletedProcess[str]:
        if args[:2] == ("plugins", "check") or not fork_server().serves(self.env):
            return super()._run(args, stdin)
        return run_command(args, cwd=self.work, env=self.env, stdin=stdin)


def _processes_below(home: Path) -> list[int]:
    mark = f"HOME={home}".encode()
    found = []
    for path in (process / "environ" for process in Path("/proc").glob("[0-9]*")):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if (
            any(
                b"TPUX_" in entry and entry.split(b"=", 1)[-1].startswith(str(home).encode())
                for entry in content.split(b"\0")
            )
            or mark in content
            or _is_supervisor(path.parent, home)
        ):
            found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def _is_supervisor(process: Path, home: Path) -> bool:
    """Return whether a process writes the log of a supervisor: /proc has no environment of one that was forked."""
    try:
        return (process / "fd/2").readlink().is_relative_to(home / "supervisor")
    except OSError:
        return False


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def no_program_is_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Kill the programs of a `tests.world.World`, which has no supervisor."""
    yield
    if "world" in request.fixturenames:
        _kill(_processes_below(tmp_path))


def _installation(kind: type[Tpux], tmp_path: Path) -> Tpux:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir(exist_ok=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TPUX_")}
    return kind(home, work, env | {"TPUX_HOME": str(home), "NO_COLOR": "1"})


@pytest.fixture
def tpux(tmp_path: Path) -> Iterator[Tpux]:
    one = _installation(Tpux, tmp_path)
    yield one
    one.close()


@pytest.fixture
def runner(tmp_path: Path) -> Tpux:
    """`tpux` in the test's own process: for commands that start no job, and so no supervisor."""
    return _installation(CommandRunner, tmp_path)


@pytest.fixture
def faults(tpux: Tpux, tmp_path: Path) -> Iterator[Faults]:
    """System calls of tpux' processes that fail on request (`tests/faulty/preload.py`)."""
    faults = Faults(tmp_path)
    faults.install(tpux.env)
    yield faults
    faults.stop()  # before the supervisor is stopped
