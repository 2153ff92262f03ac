"""Serve the pages on a port of loopback or on a unix socket, until Ctrl-C."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from tpux import TpuxError, UsageError, api
from tpux.api.text import echo
from tpux_web.guard import Guard
from tpux_web.pages import make_app
from tpux_web.stream import Streams

LONGEST_SOCKET = 100
"""Bytes of the path of a socket, of which Linux allows 107."""


def serve(port: int | None, *, actions: bool) -> None:
    """Serve until Ctrl-C or SIGTERM, and print the address first.

    Args:
        port: of 127.0.0.1, 0 for any that is free; None for a unix socket.
        actions: whether the pages may change jobs.

    Raises:
        UsageError: the port is in use, or a server of this user already has the socket.
        TpuxError: the token or the socket cannot be written.
    """
    os.umask(0o077)
    token = secrets.token_urlsafe(32)
    streams = Streams()
    guard = Guard(make_app(streams, actions=actions), token, actions=actions)
    config = uvicorn.Config(
        guard,
        log_config=None,  # requests are not logged: they name jobs
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    try:
        directory = _directory()
        logger = logging.getLogger("uvicorn")
        logger.addHandler(logging.FileHandler(directory / "log", delay=True))
        logger.propagate = False
        with _listen(port, directory) as listening, _token_file(directory, token), _ended_by_signals(server, streams):
            _print_address(listening, token, actions=actions)
            server.run(sockets=[listening])
    except OSError as error:
        raise TpuxError(f"cannot serve: {error.strerror or error}", where=error.filename or "tpux web") from error


@contextmanager
def _ended_by_signals(server: uvicorn.Server, streams: Streams) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the streams, for which uvicorn would wait, and then the server.

    uvicorn raises a signal again at its end, and does not handle one that comes before it has begun.
    """

    def end(number: int, frame: FrameType | None) -> None:
        streams.stopping = server.should_exit = True
        del number, frame

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    handle_exit = server.handle_exit

    def end_streams_first(sig: int, frame: FrameType | None) -> None:
        streams.stopping = True
        handle_exit(sig, frame)

    server.handle_exit = end_streams_first  # type: ignore[method-assign]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _directory() -> Path:
    """Return the directory of the token and the socket, which only the user can enter."""
    directory = api.home() / f"web-{os.environ.get('TPUX_USER') or getpass.getuser()}"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    return directory


@contextmanager
def _token_file(directory: Path, token: str) -> Iterator[None]:
    for path in directory.glob("token-*"):
        if not Path(f"/proc/{path.name.removeprefix('token-')}").exists():
            path.unlink(missing_ok=True)  # of a server that was killed; on a system without /proc of a live one, too
    path = directory / f"token-{os.getpid()}"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _listen(port: int | None, directory: Path) -> Iterator[socket.socket]:
    if port is not None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", port))
            except OSError as error:
                hint = "take another one, or --port 0 for any that is free"
                raise UsageError(f"port {port} cannot be used: {error.strerror}", hint=hint) from error
            listening.listen()
            yield listening
        return
    path = directory / "socket"
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise UsageError(f"the path of the socket is too long: {path}", hint="use --port, or a shorter TPUX_HOME")
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen()
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that was killed.

    Raises:
        UsageError: a server answers there, or it is another file.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is not a socket", hint="remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UsageError(f"a server already runs on {path}", hint="end it with Ctrl-C, or use --port 0")


def _print_address(listening: socket.socket, token: str, *, actions: bool) -> None:
    name = listening.getsockname()
    allowed = "jobs can be changed" if actions else "read-only; --allow-actions lets the page change jobs"
    if isinstance(name, str):
        echo(f"http://localhost:8080/#token={token}")
        api.say(f"on your own machine first: ssh -L 8080:{name} {socket.gethostname()}")
    else:
        echo(f"http://127.0.0.1:{name[1]}/#token={token}")
    api.say(f"open the address in a browser ({allowed}); Ctrl-C ends the server, not the jobs")
