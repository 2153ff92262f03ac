"""The socket over which commands use connections to workers that this process holds (`remote/forwarded.py`).

A worker has connections of its own for that, beside the one over which the job's turns poll it, and all calls run in
threads of their own: nothing of it delays a turn. A connection that is given back waits for the next command. One whose
caller has died, or has cancelled a call, is closed, which is all that can be done about what runs there: as with ssh, a
script ends when it writes the next time.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from tpux import descriptors, threads
from tpux.clock import Clock
from tpux.errors import HostIdentityError, HostUnreachableError, TpuxError, plain_reason
from tpux.framing import Call, CallError, Kind, Link, LinkError
from tpux.lifecycle.connection import connect_worker
from tpux.model.host import OpenHost
from tpux.model.job import Job
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.plugin.manager import Plugins
from tpux.remote.calls import StepInterruptedError
from tpux.remote.connections import TransportFailedError
from tpux.remote.forwarded import identify, require_same_user, short_path
from tpux.store.state import State

_log = logging.getLogger(__name__)
GREETING_TIMEOUT = 10.0
"""Seconds that a process has to say which version it has."""
IDLE_FOR = 600.0
"""Seconds that a connection waits for the next command."""
PROBE_AFTER = 5.0
"""Seconds after which a connection is tried before it is used again: a call that fails may not be repeated."""
PROBE_TIMEOUT = 5.0
FAREWELL_TIMEOUT = 1.0
"""Real seconds for which commands are told that this process ends."""
MOST_HOSTS = 1024
"""Connections that commands use at a time; further commands connect by themselves."""
Find = Callable[[str], tuple[Job, Plugins, State] | None]


class _UnavailableError(Exception):
    """The command is to connect by itself."""


@dataclass(eq=False)
class _Held:
    """A connection to a worker, used by one command at a time.

    Attributes:
        key: the job and the worker.
        interrupted: once it is set, its calls raise `StepInterruptedError`.
        host: the connection; None while it is being opened.
        link: the command that uses it.
        failed: it is not given to another command.
        since: when it was given back, by the monotonic clock.
    """

    key: tuple[str, int]
    worker: Worker
    link: Link
    interrupted: threading.Event = field(default_factory=threading.Event)
    host: OpenHost | None = None
    failed: bool = False
    since: float = 0.0


class _CallerLostError(OSError):
    """Output cannot be passed on: to a transport an error of the connection."""


class Server:
    """Listens on a unix socket that only processes of the same user can use.

    Args:
        address: the socket, in a directory of its own, which is made for this user only.
        find: returns a job that this process drives, with its plugins and its state; in any thread.
        clock: the current time.
    """

    def __init__(self, address: Path, find: Find, clock: Clock) -> None:
        self._address = address
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._links: dict[Link, socket.socket] = {}
        self._calls: set[Call] = set()
        self._held: dict[int, _Held] = {}
        self._idle: dict[tuple[str, int], _Held] = {}
        self._last = 0

    def start(self) -> None:
        """Begin to listen. If that is impossible, commands connect by themselves."""
        directory = self._address.parent
        listening = socket.socket(socket.AF_UNIX)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if stat.S_IMODE(directory.stat().st_mode) != 0o700:
                directory.chmod(0o700)
            self._address.unlink(missing_ok=True)
            with short_path(self._address) as path:
                listening.bind(path)
            self._address.chmod(0o600)
            listening.listen(64)
            self._listening = listening
            threads.pool("callers").submit(partial(self._listen, listening))
        except (OSError, MemoryError) as error:
            _log.warning("commands cannot use the connections of this process: %s", error)
            self._listening = None
            listening.close()

    def close(self, reason: str) -> None:
        """End all calls, and close all connections.

        Args:
            reason: what the commands are told.
        """
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self._address.unlink(missing_ok=True)
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listening.close()
        with self._lock:
            calls, links = [*self._calls], {**self._links}
            held, self._held = [*self._held.values(), *self._idle.values()], {}
            self._idle.clear()
        self._say_why(calls, reason)
        for link, connection in links.items():
            link.close(reason)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._drop(held)

    @staticmethod
    def _say_why(calls: list[Call], reason: str) -> None:
        """Tell the callers that their calls have ended, for a second at most: one of them may not read."""

        def end() -> None:
            for call in calls:
                call.end(Kind.ERROR, _encode({"error": "ended", "message": reason}))

        if calls:
            with suppress(threads.NoThreadError, MemoryError):
                threads.pool("callers").submit(end).wait(FAREWELL_TIMEOUT)

    @property
    def busy(self) -> bool:
        """True if a command uses a connection, whose machines may be held after the end of their job."""
        return bool(self._held or self._calls)

    def look_after(self, jobs: Collection[str]) -> None:
        """Close connections that are not needed: idle for long, of jobs that are done, or in times of few descriptors.

        Args:
            jobs: the jobs that this process drives.
        """
        if self._idle:
            now, short = self._clock.monotonic(), descriptors.is_short()
            with self._lock:
                old = [held for held in self._idle.values() if short or now - held.since > IDLE_FOR]
                old += [held for held in self._idle.values() if held.key[0] not in jobs and held not in old]
                for held in old:
                    del self._idle[held.key]
            self._drop(old)

    # --- the commands ---------------------------------------------------------------------------

    def _listen(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if self._listening is not listening:
                    return
                _log.warning("a command cannot connect to this process: %s", error)
                threading.Event().wait(1.0)  # there may be too many open files
                continue
            try:
                threads.pool("callers").submit(partial(self._serve, connection))
            except (threads.NoThreadError, MemoryError):
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one command until it ends."""
        link = Link(connection.recv, connection.sendall)
        with connection:
            try:
                require_same_user(connection)
                if descriptors.is_short():
                    return
                connection.settimeout(GREETING_TIMEOUT)
                link.greet()
                connection.settimeout(None)
            except (OSError, LinkError) as error:
                _log.info("a command is not served: %s", error)
                return
            with self._lock:
                if self._listening is None:
                    return
                self._links[link] = connection
            try:
                link.run(partial(self._accept, link))
            finally:
                with self._lock:
                    self._links.pop(link, None)
                    lost = {number: held for number, held in self._held.items() if held.link is link}
                    for number in lost:
                        del self._held[number]
                self._drop([*lost.values()])

    def _accept(self, link: Link, call: Call, data: bytes) -> None:
        """Begin a call, in the thread that receives."""
        try:
            values = cast("dict[str, JsonValue]", json.loads(data))
            if values["operation"] == "open":
                run = partial(self._open, link, call, values)
            else:
                held = self._held[number := cast("int", values["host"])]
                call.on_loss = partial(self._drop, [held])
                run = (
                    partial(self._close, held, number)
                    if values["operation"] == "close"
                    else partial(self._call, held, call, values)
                )
            self._calls.add(call)
            threads.pool("callers").submit(partial(self._answer, call, run))
        except (threads.NoThreadError, MemoryError, LookupError, ValueError) as error:
            self._calls.discard(call)
            call.end(Kind.ERROR, _encode(_told(error)))

    def _answer(self, call: Call, run: Callable[[], JsonValue]) -> None:
        """Run a call, and send its answer."""
        try:
            kind, answer = Kind.EXIT, run()
        except _UnavailableError:
            kind, answer = Kind.ERROR, {"error": "unavailable"}
        except BaseException as error:  # noqa: BLE001  (also those of plugins)
            kind, answer = Kind.ERROR, _told(error)
        finally:
            self._calls.discard(call)
        call.end(kind, _encode(answer))

    # --- their calls ----------------------------------------------------------------------------

    def _open(self, link: Link, call: Call, values: dict[str, JsonValue]) -> JsonValue:
        """Take a connection to a worker, and return its number."""
        try:
            held = self._take(str(values["job"]), cast("dict[str, JsonValue]", values["worker"]), link, call)
        except (HostIdentityError, TransportFailedError) as error:
            raise _UnavailableError from error
        except (HostUnreachableError, StepInterruptedError):
            raise
        except (TpuxError, OSError) as error:
            raise _UnavailableError from error
        with self._lock:
            if self._listening is not None and link in self._links and not held.interrupted.is_set():
                self._last += 1
                self._held[self._last] = held
                home: Path | None = getattr(held.host, "local_home", None)
                return {"host": self._last, "local_home": os.fspath(home) if home else None}
        self._drop([held])
        raise _UnavailableError

    def _take(self, job: str, described: dict[str, JsonValue], link: Link, call: Call) -> _Held:
        """Return a connection to a worker: one that waits for a command, or a new one."""
        found = self._find(job)
        machines = found and found[2].machines
        worker = next((one for one in (machines.workers if machines else ()) if asdict(one) == described), None)
        if found is None or machines is None or worker is None or len(self._held) >= MOST_HOSTS:
            raise _UnavailableError
        held = self._take_idle(job, worker, link) or _Held((job, worker.index), worker, link)
        call.on_loss = partial(self._drop, [held])
        if held.host is None:
            opened, plugins, state = found
            descriptors.require(urgent=False)
            # Only the job's own turns ask its allocator: a command that has to, connects by itself.
            held.host = connect_worker(plugins, machines.transport, worker, opened, state, held.interrupted, asks=False)
        return held

    def _take_idle(self, job: str, worker: Worker, link: Link) -> _Held | None:
        """Return a connection that waits for a command, and still works."""
        with self._lock:
            held = self._idle.pop((job, worker.index), None)
        if held is None:
            return None
        held.link = link
        try:
            if held.worker == worker and held.host is not None:
                if self._clock.monotonic() - held.since > PROBE_AFTER:
                    held.host.run(":", timeout=PROBE_TIMEOUT)
                return held
        except (TpuxError, OSError) as error:
            _log.info("job %s: the connection to worker %d is not used again: %s", job, worker.index, error)
        self._drop([held])
        return None

    def _close(self, held: _Held, number: int) -> JsonValue:
        """Keep a connection for the next command, unless it has failed or there is one."""
        with self._lock:
            self._held.pop(number, None)
            held.since = self._clock.monotonic()
            keep = not (held.failed or held.interrupted.is_set() or held.key in self._idle) and bool(self._listening)
            if keep:
                self._idle[held.key] = held
        if not keep:
            self._drop([held])
        return None

    def _call(self, held: _Held, call: Call, values: dict[str, JsonValue]) -> JsonValue:
        """Call a method of a host, and return what it returns."""
        if (host := held.host) is None:
            raise _UnavailableError
        stdin = bytearray()
        while piece := call.receive().payload:
            stdin += piece

        def send(piece: bytes) -> None:
            try:
                call.send(Kind.STDOUT, piece)
            except (CallError, LinkError) as error:
                raise _CallerLostError(str(error)) from error

        try:
            return _call_method(host, values, bytes(stdin), send)
        except BaseException:
            held.failed = True
            raise

    def _drop(self, dropped: list[_Held]) -> None:
        """Close connections, in another thread, since it may take a moment; calls on them end."""
        for held in dropped:
            held.failed = True
            held.interrupted.set()

        def close() -> None:
            for held in dropped:
                with suppress(OSError, TpuxError):
                    if held.host is not None:
                        held.host.close()

        if dropped:
            threads.in_background(close, "callers")


def _call_method(
    host: OpenHost, values: dict[str, JsonValue], stdin: bytes, send: Callable[[bytes], None]
) -> JsonValue:
    script, timeout = str(values.get("script")), float(cast("float", values.get("timeout", 0.0)))
    match values["operation"]:
        case "run":
            result = host.run(script, stdin=stdin, timeout=timeout)
            send(result.output)
            return result.code
        case "follow":
            return host.follow(script, send, stdin=stdin, timeout=timeout)
        case "put":
            source = stdin if values["path"] is None else _find_same(Path(str(values["path"])), values["file"])
            host.put(source, str(values["remote"]), cast("int", values["mode"]))
            return None
        case "read":
            pieces = [(str(path), offset) for path, offset in cast("list[tuple[str, int]]", values["pieces"])]
            contents = host.read(*pieces)
            for content in filter(None, contents):
                send(content)
            return [None if content is None else len(content) for content in contents]
        case other:
            raise TpuxError(f"the supervisor knows no operation {other!r}")


def _find_same(path: Path, file: JsonValue) -> Path:
    with suppress(OSError):
        if identify(path) == file:
            return path
    raise TpuxError(
        f"{path} is another file for the supervisor, which runs outside of this container or mount namespace",
        hint="copy it from a directory that both see",
    )


def _told(error: BaseException) -> dict[str, JsonValue]:
    """Return an error as the command is told it."""
    if isinstance(error, StepInterruptedError):
        error = HostUnreachableError("the connection was closed")
    if not isinstance(error, TpuxError):
        if not isinstance(error, OSError):
            _log.error("a call of a command has failed", exc_info=error)
        return {"error": "os", "message": plain_reason(error)}
    kind = "identity" if isinstance(error, HostIdentityError) else "unreachable"
    kind = kind if isinstance(error, HostUnreachableError) else "error"
    return {"error": kind, "message": error.message, "where": error.where, "hint": error.hint}


def _encode(values: JsonValue) -> bytes:
    return json.dumps(values).encode()
