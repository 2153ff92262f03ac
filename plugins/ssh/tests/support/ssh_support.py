"""Helpers that create jobs, workers and servers, and run the command."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ssh_servers import Server, free_port, missing

import tpux_ssh
from tpux import Job, Put, Result, Section, Steps, Worker
from tpux.model.sections import CORE_SECTIONS, CommandSection
from tpux_ssh.keyfiles import own_key, public_line

MakeServer = Callable[..., Server]
_addresses = itertools.count(2)


@contextmanager
def servers_in(directory: Path) -> Iterator[MakeServer]:
    """Yield a function that starts sshd processes accepting tpux's own key; stop them at exit."""
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    started: list[Server] = []

    def make(address: str = "", **options: object) -> Server:
        address = address or f"127.0.4.{next(_addresses)}"
        authorized_keys = options.pop("authorized_keys", None) or [public_line(own_key())]
        path = directory / f"server-{len(started)}"
        server = Server(path, address, free_port(), authorized_keys, **options)  # type: ignore[arg-type]
        started.append(server)
        return server.start()

    try:
        yield make
    finally:
        for server in started:
            server.stop()


def worker_at(server: Server, index: int = 0, address: str = "", **details: str) -> Worker:
    """Return a worker that is reached through a server."""
    return Worker(index, address=f"{address or server.address}:{server.port}", details=details)


def make_job(directory: Path, **sections: Section) -> Job:
    """Return a job with these sections and core's defaults, as it would be created from this shell."""
    core = {word: model() for word, model in CORE_SECTIONS.items() if word != "command"}
    directory.mkdir(parents=True, exist_ok=True)
    job = Job("000001", "me", "store", directory, {**core, "command": CommandSection(cmd="true"), **sections})
    return replace(job, resolved={"ssh": tpux_ssh.resolve(job)})


class LocalHome:
    """Runs steps in a home directory of this machine, on whose disk nothing can be written while it is `full`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.full = False

    def __call__(self, steps: Steps) -> Result:
        """Run steps as core does, and return the result of the first that fails, or of the last."""
        result = Result()
        try:
            step = next(steps)
            while True:
                if isinstance(step, Put):
                    result = self._put(step)
                elif not (result := self._run(step.script)).ok:
                    return result
                step = steps.send(result)
        except StopIteration:
            return result

    def _put(self, step: Put) -> Result:
        target = self.path / step.remote
        target.write_bytes(step.source if isinstance(step.source, bytes) else step.source.read_bytes())
        target.chmod(step.mode)
        return Result()

    def _run(self, script: str) -> Result:
        limit = "trap '' XFSZ; ulimit -f 0; " if self.full else ""
        environ = {**os.environ, "HOME": str(self.path)}
        words = ["sh", "-ec", f"exec 2>&1; {limit}\n{script}"]
        done = subprocess.run(words, cwd=self.path, env=environ, stdout=subprocess.PIPE, check=False)
        return Result(done.returncode, done.stdout)


class Tpux:
    """Runs the command `tpux` with one store."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program = str(Path(sys.executable).with_name("tpux"))

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "TPUX_HOME": str(self.home)}
        return subprocess.run([self.program, *words], capture_output=True, text=True, timeout=100, env=environ)

    def clear(self) -> None:
        """Delete all jobs and stop the supervisor."""
        if (self.home / "jobs").exists():
            self("delete", "-y", "--name", "*")
            self("supervisor", "stop")


@contextmanager
def open_files(number: int) -> Iterator[list[int]]:
    """Hold so many descriptors, as a supervisor of many jobs does, in a process that may have 200 more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < number + 500:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 500), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(number)]
    try:
        yield files
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
