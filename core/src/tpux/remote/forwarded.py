"""Connections to workers that the supervisor holds, as other processes of the same user use them.

A command opens a unix socket of the supervisor (`supervisor/server.py`), with `tpux.framing` on it: `open` gives a
worker's host a number, which further calls name. To open one changes nothing, so whatever is wrong until then, the
command connects by itself. A call that was sent is never repeated: if the supervisor ends meanwhile, its outcome is
unknown.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import cast

from tpux import threads
from tpux.errors import HostIdentityError, HostUnreachableError, TpuxError
from tpux.framing import Call, CallError, Kind, Link, LinkError
from tpux.model.host import CHUNK_SIZE
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.model.steps import Result
from tpux.store import heartbeat

GREETING_TIMEOUT = 2.0
"""Seconds that the supervisor has to answer a command, which else connects by itself."""
OPEN_TIMEOUT = 60.0
"""The same for the connection to a worker: longer than most transports try."""
ANSWER_MARGIN = 30.0
"""Seconds after the timeout of a call until a supervisor that has not said how it ended counts as lost."""
COPY_TIMEOUT = 24 * 3600.0
"""The timeout of what has none of its own."""
LOOK_EVERY = 1.0
"""Seconds without a frame of the supervisor after which its heartbeat is looked at."""
LOOKS = 3
"""Looks in a row that find it without one: this process may have been stopped as long as the supervisor."""
UNKNOWN_OUTCOME = 255
"""The exit code of a command if it is unknown whether what it began has run to its end, as that of ssh."""
_PEER = struct.Struct("3i")
_LONGEST_ADDRESS = 100
"""Bytes; the system allows 108."""
_ERRORS: Mapping[str, type[TpuxError]] = {"unreachable": HostUnreachableError, "identity": HostIdentityError}


class OutcomeUnknownError(HostUnreachableError):
    """The supervisor has ended or does not move during a call, which may have run to its end or not."""

    def __init__(self, worker: Worker, why: str, hint: str = "") -> None:
        message = f"{why}: whether it ran to its end is unknown"
        super().__init__(message, where=f"worker {worker.index}", hint=hint)
        self.exit_code = UNKNOWN_OUTCOME


class _UnavailableError(Exception):
    """The supervisor does not connect to this worker for others."""


class _SupervisorLink(Link):
    """The connection of this process to the supervisor.

    Attributes:
        silence: for how many seconds the supervisor had not moved, if that has ended the connection.
    """

    silence = 0.0

    def wait_for(self, connection: socket.socket, supervisor: Path) -> None:
        """Wait until the supervisor has sent something.

        Raises:
            LinkError: it does not move.
        """
        looks, received = 0, select.poll()
        received.register(connection, select.POLLIN)
        while not received.poll(LOOK_EVERY * 1000):
            silence = heartbeat.silence(supervisor)
            looks = looks + 1 if silence else 0
            if looks == LOOKS:
                self.silence = silence
                raise LinkError("it does not move")


class ForwardedHost:
    """A worker's host that the supervisor holds. Like any host, it is used by one thread at a time.

    Args:
        link: the connection to the supervisor.
        worker: the worker.
        opened: the supervisor's answer to `open`.
    """

    def __init__(self, link: _SupervisorLink, worker: Worker, opened: Mapping[str, JsonValue]) -> None:
        self.worker = worker
        home = opened.get("local_home")
        self.local_home = Path(home) if isinstance(home, str) else None
        self._link = link
        self._number = opened["host"]

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run a script; see `Host.run`."""
        output = bytearray()
        code = self._call("run", output.extend, {"script": script, "timeout": timeout}, stdin, timeout)
        return Result(cast("int", code), bytes(output))

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script and pass its output on; see `Host.follow`."""
        return cast("int", self._call("follow", listen, {"script": script, "timeout": timeout}, stdin, timeout))

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file to the worker; see `Host.put`. The supervisor reads the file, if it is the same one there."""
        if isinstance(source, bytes):
            self._call("put", None, {"path": None, "remote": remote, "mode": mode}, source)
        else:
            path = source.resolve()  # /dev/stdin is another file there
            values: dict[str, JsonValue] = {"path": os.fspath(path), "file": identify(path)}
            self._call("put", None, {**values, "remote": remote, "mode": mode})

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker, atomically; see `Host.get`."""
        partial = local.with_name(f".{local.name}.{threading.get_ident()}")
        try:
            with partial.open("wb") as file:
                while chunk := self._read_existing(remote, file.tell()):
                    file.write(chunk)
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read files from offsets on; see `Host.read`."""
        content = bytearray()
        sizes = self._call("read", content.extend, {"pieces": [[*piece] for piece in pieces]})
        found: list[bytes | None] = []
        for size in cast("list[int | None]", sizes):
            found.append(None if size is None else bytes(content[:size]))
            del content[: size or 0]
        return found

    def close(self) -> None:
        """Let the supervisor use the connection for others; see `Host.close`."""
        with suppress(LinkError):
            self._link.call(_encode({"operation": "close", "host": self._number}))

    def _read_existing(self, remote: str, offset: int) -> bytes:
        if (chunk := self.read((remote, offset))[0]) is None:
            raise TpuxError(f"file not found: {remote}", where=f"worker {self.worker.index}")
        return chunk

    def _call(
        self,
        operation: str,
        listen: Callable[[bytes], object] | None,
        values: dict[str, JsonValue],
        stdin: bytes = b"",
        timeout: float = COPY_TIMEOUT,
    ) -> JsonValue:
        """Let the supervisor call a method of the host, and return its answer.

        Raises:
            TpuxError, OSError: what the method raised.
            OutcomeUnknownError: the supervisor has ended, or does not move.
        """
        try:
            call = self._link.call(_encode({"operation": operation, "host": self._number, **values}))
            with suppress(CallError):  # it has failed already, and its answer says why
                for start in range(0, len(stdin), CHUNK_SIZE):
                    call.send(Kind.STDIN, stdin[start : start + CHUNK_SIZE])
                call.send(Kind.STDIN)
            return answer_of(call, listen or (lambda _: None), timeout + ANSWER_MARGIN)
        except LinkError as error:
            if silence := self._link.silence:
                why, hint = f"the supervisor has not moved for {silence:.0f} s", "tpux supervisor restart --force"
                raise OutcomeUnknownError(self.worker, why, hint) from error
            raise OutcomeUnknownError(self.worker, f"the supervisor has ended ({error})") from error
        except TimeoutError as error:
            raise OutcomeUnknownError(self.worker, "the supervisor does not answer") from error


def identify(path: Path) -> list[JsonValue]:
    """Return what distinguishes a file from another one of the same path, as seen from a container."""
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size]


def answer_of(call: Call, listen: Callable[[bytes], object], timeout: float) -> JsonValue:
    """Wait for the end of a call; it is cancelled if that is interrupted.

    Args:
        call: the call.
        listen: called with each piece of output.
        timeout: seconds to wait for the next piece, or the end.

    Raises:
        TpuxError, OSError: what the other side raised.
        TimeoutError: it has sent nothing for too long.
        LinkError: the other side cannot be reached any more.
    """
    try:
        while (frame := call.receive(timeout)).kind == Kind.STDOUT:
            listen(frame.payload)
    except BaseException:
        call.cancel()
        raise
    answer = cast("JsonValue", json.loads(frame.payload))
    if frame.kind == Kind.EXIT:
        return answer
    told = cast("dict[str, str]", answer)
    match told["error"]:
        case "unavailable":
            raise _UnavailableError
        case "ended":
            raise LinkError(told["message"])
        case "os":
            raise OSError(told["message"])
        case kind:
            raise _ERRORS.get(kind, TpuxError)(told["message"], where=told["where"], hint=told["hint"])


def _encode(values: Mapping[str, object]) -> bytes:
    return json.dumps(values).encode()


_links: dict[tuple[Path, int], _SupervisorLink] = {}
_linking = threading.Lock()


def open_forwarded(address: Path, job: str, worker: Worker) -> ForwardedHost | None:
    """Return a worker's host that the supervisor holds; None if this process is to connect by itself.

    Args:
        address: the supervisor's socket.
        job: the job's id.
        worker: the worker; the supervisor must know it as the same.

    Raises:
        HostUnreachableError: the supervisor has tried, and the worker does not answer.
    """
    with suppress(LinkError, OSError, TimeoutError, _UnavailableError, threads.NoThreadError):
        link = _link(address)
        call = link.call(_encode({"operation": "open", "job": job, "worker": asdict(worker)}))
        return ForwardedHost(link, worker, cast("dict[str, JsonValue]", answer_of(call, lambda _: None, OPEN_TIMEOUT)))
    return None


def _link(address: Path) -> _SupervisorLink:
    """Return this process's connection to the supervisor."""
    with _linking:
        key = (address, os.getpid())
        link = _links.get(key)
        if link is None or link.ended:
            link = _links[key] = _connect(address)
        return link


def _connect(address: Path) -> _SupervisorLink:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(GREETING_TIMEOUT)
        with short_path(address) as path:
            connection.connect(path)
        require_same_user(connection)

        def read(size: int) -> bytes:
            if connection.gettimeout() is None:
                link.wait_for(connection, address.parents[1])
            return connection.recv(size)

        link = _SupervisorLink(read, connection.sendall)
        link.greet()
        connection.settimeout(None)

        def receive() -> None:
            with connection:
                link.run()
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits until it can send

        threads.pool("supervisor").submit(receive)
    except BaseException:
        connection.close()
        raise
    return link


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Return a path of a socket that the system accepts, however long its own one is."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield os.fspath(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def require_same_user(connection: socket.socket) -> None:
    """Raise an error if the process at the other end of a unix socket is another user's.

    Raises:
        PermissionError: it is.
    """
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        raise PermissionError(f"the other process is of the user {user}")
