"""A temporary store with its own supervisor, and gates at which programs wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.measure import until
from tpux.lifecycle.create import create_job
from tpux.store import Store
from tpux.store.record import Record
from tpux.supervisor import client
from tpux.supervisor.files import Files
from tpux_local.processes import processes_of, send

TPUX = Path(sys.executable).parent / "tpux"


class Sandbox:
    """A temporary store, and the `tpux` command that uses it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TPUX_")}
        self.env = kept | {"TPUX_HOME": str(self.home), "NO_COLOR": "1"}
        self.store = Store(self.home)

    def tpux(self, *args: str) -> str:
        """Run the command and return its stdout."""
        done = subprocess.run([TPUX, *args], env=self.env, check=True, capture_output=True, text=True)
        return done.stdout

    def config(self, text: str) -> Path:
        """Write a config with this text and return its path."""
        path = self.directory / "job.yaml"
        path.write_text(text)
        return path

    def create(self, config: Path, count: int) -> list[Record]:
        """Create jobs from a config; they stay pending until `start`."""
        return [create_job(self.store, config, (), warn=print) for _ in range(count)]

    def submit(self, text: str) -> Record:
        """Create a job of a config with the command, since plugins use the store of their process, and start it."""
        created = json.loads(self.tpux("create", str(self.config(text)), "--json"))
        return self.store.find(str(created["id"]), note=print)

    def start(self) -> int:
        """Start the supervisor and return its pid."""
        self.tpux("supervisor", "start")
        until(lambda: client.pid(self.store) is not None, within=20, why="the supervisor to start", every=0.01)
        return client.pid(self.store) or 0

    def gate(self, name: str) -> Gate:
        """Create a closed gate."""
        return Gate(self.directory / name)

    def log(self) -> str:
        """Return the end of the supervisor's log."""
        path = Files(self.store.supervisor).log
        return path.read_text()[-3000:] if path.exists() else "no supervisor was started"

    def close(self) -> None:
        """Stop the supervisor and kill all processes of the local workers."""
        self.tpux("supervisor", "stop")
        send(processes_of(self.home.glob("jobs/*/*/machines/*/worker-*")), signal.SIGKILL)


class Gate:
    """A FIFO: `: < PATH` in a program blocks until the gate is opened, without polling or an additional process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Let all waiting programs continue."""
        with suppress(OSError):  # no program is waiting
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))


@contextmanager
def temporary_sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox, and remove its processes and files afterwards."""
    with tempfile.TemporaryDirectory(prefix="tpux-bench-", ignore_cleanup_errors=True) as directory:
        sandbox = Sandbox(Path(directory))
        try:
            yield sandbox
        except BaseException:
            print(sandbox.log(), file=sys.stderr)
            raise
        finally:
            sandbox.close()


def running(record: Record) -> bool:
    """Return whether the program runs on all workers."""
    state = record.refresh()
    return state.state == "running" and state.run.running
