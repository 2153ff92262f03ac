"""Connections to workers, guarded against their plugin's errors; a transport may connect through another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tpux.errors import TpuxError
from tpux.model.host import Host, Stream
from tpux.model.job import Job
from tpux.model.machines import Worker
from tpux.model.steps import Result
from tpux.plugin import answers, spec
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins
from tpux.plugin.stdout import own_stdout, stdout_to_stderr


class _Opening(threading.local):
    """The transports whose `connect` this thread is in, the outermost first, and the plugins that they belong to."""

    def __init__(self) -> None:
        self.transports: list[str] = []
        self.plugins: Plugins | None = None


_opening = _Opening()


class GuardedHost:
    """A connection whose plugin's errors become `PluginError`: wrong results, and exceptions that are not expected.

    TpuxErrors and OSErrors are expected.
    """

    def __init__(self, host: Host, worker: Worker, plugins: Plugins, transport: str) -> None:
        self.worker = worker
        home = getattr(host, "local_home", None)
        self.local_home = home if isinstance(home, Path) else None
        # Optional, as the home directory. A transport that wraps this one may pass None on.
        self.stream = self._stream if callable(getattr(host, "stream", None)) else None
        self._host = host
        self._plugins = plugins
        self._transport = transport

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._plugins.guard.running(self._transport, spec.connect, expected=(OSError,)), stdout_to_stderr():
            yield

    def _validate(self, method: str, problem: str) -> None:
        """Raise the error for a problem of a method's result; "" is none."""
        if problem:
            raise self._plugins.guard.wrong_answer(spec.connect, self._transport, problem, method=f"Host.{method}")

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run a script; see `Host.run`."""
        with self._guarded():
            result = self._host.run(script, stdin=stdin, timeout=timeout)
            self._validate("run", answers.problem_of(Host.run, result))
            return result

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script and pass its output on; see `Host.follow`."""

        def listen_validated(piece: bytes) -> None:
            self._validate("follow", answers.problem_of_output(piece))
            with own_stdout():
                listen(piece)

        with self._guarded():
            code = self._host.follow(script, listen_validated, stdin=stdin, timeout=timeout)
            self._validate("follow", answers.problem_of(Host.follow, code))
            return code

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file to the worker; see `Host.put`."""
        with self._guarded():
            self._host.put(source, remote, mode)

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker; see `Host.get`."""
        with self._guarded():
            self._host.get(remote, local)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read files from offsets on; see `Host.read`."""
        with self._guarded():
            contents = self._host.read(*pieces)
            self._validate("read", answers.problem_of_read(pieces, contents))
            return contents

    def _stream(self, script: str) -> Stream:
        start: Callable[[str], Stream] = getattr(self._host, "stream")  # noqa: B009  (not every host has it)
        with self._guarded():
            return _GuardedStream(start(script), self._plugins, self._transport)

    def close(self) -> None:
        """Close the connection; see `Host.close`."""
        with self._guarded():
            self._host.close()


class _GuardedStream:
    """A stream whose plugin's errors become `PluginError`."""

    def __init__(self, stream: Stream, plugins: Plugins, transport: str) -> None:
        self._stream = stream
        self._guard = plugins.guard
        self._transport = transport

    def take(self) -> bytes | None:
        """Return what has arrived; see `Stream.take`."""
        with self._guard.running(self._transport, spec.connect, expected=(OSError,)):
            piece = self._stream.take()
            if piece is not None and (problem := answers.problem_of_output(piece)):
                raise self._guard.wrong_answer(spec.connect, self._transport, problem, method="Stream.take")
            return piece

    def close(self) -> None:
        """End the script; see `Stream.close`."""
        with self._guard.running(self._transport, spec.connect, expected=(OSError,)), stdout_to_stderr():
            self._stream.close()


def open_host(plugins: Plugins, transport: str, worker: Worker, job: Job) -> Host:
    """Call `connect` of a transport; the caller guards the connection.

    Args:
        plugins: the installed plugins.
        transport: the plugin that connects.
        worker: the worker.
        job: the job.

    Raises:
        PluginError: the transport failed, or one that it connects through.
        HostUnreachableError: the worker does not answer.
        TpuxError: the transport is not installed, or is none.
    """
    with _entered(plugins, transport):
        host = plugins.call_one(transport, spec.connect, worker=worker, job=job)
    if host is None:
        raise TpuxError(f"plugin {transport!r} has no hook connect")
    return host


@contextmanager
def _entered(plugins: Plugins, transport: str) -> Iterator[None]:
    before, _opening.plugins = _opening.plugins, plugins
    _opening.transports.append(transport)
    try:
        yield
    finally:
        _opening.plugins = before
        _opening.transports.pop()


def connect_through(word: str, worker: Worker, job: Job) -> Host:
    """Open a connection with another transport; see `tpux.api.machines.connect_through`."""
    if word in _opening.transports:
        chain = " -> ".join([*_opening.transports, word])
        raise TpuxError(f"the transport {word} connects through itself: {chain}")
    if word not in selected_plugins(job):
        caller = f"plugin {_opening.transports[-1]}" if _opening.transports else "the transport"
        raise TpuxError(
            f"{caller} connects through {word}, and does not declare it",
            hint=f"define connects_through() in its section, and let it return {word!r}",
        )
    plugins = _opening.plugins or Plugins()
    return GuardedHost(open_host(plugins, word, worker, job), worker, plugins, word)
