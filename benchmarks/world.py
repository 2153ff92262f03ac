"""A tpux of one's own: a store in a temporary directory, its supervisor, and gates that programs wait at."""

from __future__ import annotations

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
from tpux_local.processes import processes_of, send

TPUX = Path(sys.executable).parent / "tpux"


class World:
    """The command, as a user types it, beside the store that it works on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TPUX_")}
        self.env = kept | {"TPUX_HOME": str(self.home), "NO_COLOR": "1"}
        self.store = Store(self.home)

    def tpux(self, *args: str) -> str:
        """Run the command; what it said on stdout."""
        done = subprocess.run([TPUX, *args], env=self.env, check=True, capture_output=True, text=True)
        return done.stdout

    def config(self, text: str) -> Path:
        """A config with this text."""
        path = self.directory / "job.yaml"
        path.write_text(text)
        return path

    def create(self, config: Path, count: int) -> list[Record]:
        """Make jobs of a config; nobody drives them before `start`."""
        return [create_job(self.store, config, (), warn=print) for _ in range(count)]

    def start(self) -> int:
        """Start the supervisor, as every command that acts on a job does; its pid."""
        self.tpux("supervisor", "start")
        until(lambda: client.pid(self.store) is not None, within=20, why="the supervisor", every=0.01)
        return client.pid(self.store) or 0

    def gate(self, name: str) -> Gate:
        """A gate that is closed."""
        return Gate(self.directory / name)

    def log(self) -> str:
        """The end of what the supervisor said."""
        path = client.Files(self.store.supervisor).log
        return path.read_text()[-3000:] if path.exists() else "no supervisor was started"

    def close(self) -> None:
        """End the supervisor, and what still runs on the workers of this world."""
        self.tpux("supervisor", "stop")
        send(processes_of(self.home.glob("jobs/*/*/machines/*/worker-*")), signal.SIGKILL)


class Gate:
    """A FIFO: `: < PATH` in a program waits, without a process of its own or a wake-up, until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Let all pass that are waiting."""
        with suppress(OSError):  # nobody is waiting
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))


@contextmanager
def world() -> Iterator[World]:
    """A world that leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="tpux-bench-", ignore_cleanup_errors=True) as directory:
        one = World(Path(directory))
        try:
            yield one
        except BaseException:
            print(one.log(), file=sys.stderr)
            raise
        finally:
            one.close()


def running(record: Record) -> bool:
    """Whether the program runs on all workers."""
    state = record.refresh()
    return state.state == "running" and bool(state.run["running"])
