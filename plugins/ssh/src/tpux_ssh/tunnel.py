"""Forward ports of this machine to workers with the system's OpenSSH, again and again while the job has machines."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tpux import UsageError, Worker, plain_reason
from tpux.api import JobConnection, say
from tpux.api.text import echo
from tpux_ssh.openssh import OpenSsh

LOCALHOST = "127.0.0.1"
LAST_PORT = 65535
RETRY_AFTER, LONGEST_RETRY = 1.0, 15.0
"""Seconds between two attempts to connect to a worker that is not reached, the first time and at most."""
LOOK_AGAIN_AFTER = 10.0
"""Seconds after which it is read again which machines the job holds."""
_ESTABLISHED = "tpux-forwards"
# OpenSSH reports each connection that the worker did not accept, with the number of a channel.
_REFUSED = re.compile(r"channel \d+: open failed: (?P<why>.*)")
_OPTIONS = ("-T", "-oBatchMode=yes", "-oExitOnForwardFailure=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5")


@dataclass(frozen=True)
class Forward:
    """A port of this machine that leads to a port of a worker."""

    local: int
    worker: int
    remote: int

    def __str__(self) -> str:
        return f"{LOCALHOST}:{self.local} -> worker {self.worker} port {self.remote}"


def plan(ports: Sequence[str], workers: Sequence[int]) -> list[Forward]:
    """Return what is forwarded: each port to each worker, of several workers from consecutive local ports.

    Args:
        ports: `PORT`, or `LOCAL:REMOTE`.
        workers: the numbers of the workers.

    Raises:
        UsageError: a port is malformed, or a local one is used twice or not free.
    """
    forwards = [
        Forward(local + offset, worker, remote)
        for local, remote in map(_parse, ports)
        for offset, worker in enumerate(workers)
    ]
    taken: dict[int, Forward] = {}
    for forward in forwards:
        if forward.local > LAST_PORT:
            raise UsageError(f"there is no port {forward.local}", hint="begin with a lower local port: LOCAL:REMOTE")
        if (other := taken.setdefault(forward.local, forward)) is not forward:
            message = f"the local port {forward.local} would lead to worker {other.worker} port {other.remote}"
            hint = "choose local ports that are further apart: LOCAL:REMOTE"
            raise UsageError(f"{message} and to worker {forward.worker} port {forward.remote}", hint=hint)
        _require_free(forward)
    return forwards


def _parse(text: str) -> tuple[int, int]:
    local, colon, remote = text.partition(":")
    ports = [local, remote if colon else local]
    if not all(port.isdecimal() and port.isascii() and 0 < int(port) <= LAST_PORT for port in ports):
        raise UsageError(
            f"{text!r} is not a port", hint="use a number such as 6006, or LOCAL:REMOTE, such as 16006:6006"
        )
    return int(ports[0]), int(ports[1])


def _require_free(forward: Forward) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ssh does: not those that closed just now
        try:
            probe.bind((LOCALHOST, forward.local))
        except OSError as error:
            message = f"cannot listen on port {forward.local} of this machine: {plain_reason(error)}"
            other = 10000 + forward.remote % 50000
            raise UsageError(message, hint=f"choose another one: {other}:{forward.remote}") from error


@dataclass
class _Connection:
    """An ssh process that forwards the ports of one worker.

    Args:
        worker: the worker.
        process: ssh, whose output has not been read.
        forwards: what it forwards.
        again: it was forwarded before.
        ended: is set when ssh has ended.
    """

    worker: Worker
    process: subprocess.Popen[str]
    forwards: Sequence[Forward]
    again: bool
    ended: threading.Event
    established: bool = False
    _said: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read what ssh prints until it ends; say when it forwards, and what the worker refuses, each reason once."""
        for line in map(str.strip, self.process.stdout or ()):
            if line == _ESTABLISHED:
                self._establish()
            elif line not in self._said:
                if refused := _REFUSED.fullmatch(line):
                    say(f"worker {self.worker.index} refused a connection: {refused['why']}")
                self._said = [*self._said[-20:], line]
        self.process.wait()
        self.ended.set()

    def _establish(self) -> None:
        self.established = True
        if self.again:
            say(f"worker {self.worker.index}: connected again")
            return
        for forward in self.forwards:
            echo(str(forward))

    def close(self) -> None:
        """End ssh."""
        self.process.terminate()
        self.process.wait()

    @property
    def why(self) -> str:
        """Why it ended, as far as ssh has said it."""
        return next((line for line in reversed(self._said) if not _REFUSED.fullmatch(line)), "the connection was lost")


class Tunnel:
    """Forwards ports of some workers; leaving it as a context manager ends all connections.

    Args:
        forwards: what is forwarded.
    """

    def __init__(self, forwards: Sequence[Forward]) -> None:
        self._forwards = forwards
        self._workers = list(dict.fromkeys(forward.worker for forward in forwards))
        self._connections: dict[int, _Connection] = {}
        self._established: set[int] = set()
        self._ended = threading.Event()
        self._problems: dict[int, str] = {}
        self._retry_after = RETRY_AFTER

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def connect(self, held: JobConnection) -> None:
        """Connect to each worker that is not connected, and to each that is another machine than before.

        Args:
            held: the job's machines now.

        Raises:
            UsageError: the job does not use ssh, or has fewer workers than before, or ssh is not installed.
        """
        openssh, workers = OpenSsh(held), {number: held.worker(number) for number in self._workers}
        for number, connection in self._connections.items():
            if connection.worker.address != workers[number].address:
                connection.close()
        self._remove_ended()
        missing = [worker for number, worker in workers.items() if number not in self._connections]
        unknown = openssh.learn_keys(missing)
        config = str(openssh.config_file(list(workers.values())))
        for worker in missing:
            if worker.index in unknown:
                self._report(worker.index, unknown[worker.index].message)
            else:
                self._start(worker, ["ssh", "-F", config], openssh.alias(worker))

    def wait(self) -> None:
        """Wait until a worker has to be connected to, again or after a failure, or the job may hold other machines."""
        # Machines that stay when the job releases them, such as a borrowed TPU, end no connection.
        if len(self._connections) == len(self._workers) and not self._ended.wait(LOOK_AGAIN_AFTER):
            return
        self._ended.clear()
        self._remove_ended()
        time.sleep(self._retry_after)
        self._retry_after = min(self._retry_after * 2, LONGEST_RETRY)

    def _start(self, worker: Worker, ssh: Sequence[str], alias: str) -> None:
        forwards = [forward for forward in self._forwards if forward.worker == worker.index]
        listen = [f"-L{LOCALHOST}:{one.local}:localhost:{one.remote}" for one in forwards]
        # Its input ends with this process, however that ends: no ssh stays behind that holds the local ports.
        command = [*ssh, *_OPTIONS, *listen, alias, f"echo {_ESTABLISHED} && exec cat >/dev/null"]
        pipe, output = subprocess.PIPE, subprocess.STDOUT
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, text=True, errors="replace")
        except FileNotFoundError as error:
            raise UsageError("ssh: command not found", hint="install openssh-client") from error
        connection = _Connection(worker, process, forwards, worker.index in self._established, self._ended)
        self._connections[worker.index] = connection
        threading.Thread(target=connection.read, daemon=True).start()

    def _remove_ended(self) -> None:
        for number, connection in list(self._connections.items()):
            if connection.process.poll() is None:
                continue
            del self._connections[number]
            if connection.established:
                self._established.add(number)
                self._problems.pop(number, None)
                self._retry_after = RETRY_AFTER
            self._report(number, connection.why)

    def _report(self, number: int, why: str) -> None:
        """Say why a worker is not connected, unless that was said last."""
        if self._problems.get(number) != why:
            self._problems[number] = why
            say(f"worker {number}: {why}; trying again until it answers")
