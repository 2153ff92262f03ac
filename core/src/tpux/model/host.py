"""The interface of an open connection to a worker; transports implement it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tpux.model.machines import Worker
from tpux.model.steps import Result

CHUNK_SIZE = 4 * 1024 * 1024
"""The most bytes that `Host.read` returns of one file."""


class Stream(Protocol):
    """The output of a script that runs on a worker, taken without waiting for it."""

    def take(self) -> bytes | None:
        """Return what has arrived since the last call; None once the script or the connection has ended.

        It never waits, and may be called while another thread uses the connection.
        """

    def close(self) -> None:
        """End the script; it gets SIGPIPE or SIGHUP at the latest when it writes again."""


class Host(Protocol):
    """An open connection to a worker, used by one thread at a time.

    Any method may raise `HostUnreachableError`. No method retries.

    A host whose worker is this machine may say so with the attribute `local_home: Path`, the worker's home directory:
    a silent program is then polled by looking at its files there, and what is read of a machine is read once for all.
    Another one may have a method `stream(script: str) -> Stream`, which starts `sh -c script` in the home directory
    beside what else runs on the connection: a silent program is then watched by a script on the worker, and polled
    when that reports a change. Without it, each poll is a round trip.
    """

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait until it ends.

        Args:
            script: written by core, short; what comes from a user is passed in `stdin` or a file.
            stdin: the script's standard input.
            timeout: seconds.

        Raises:
            HostUnreachableError: the worker did not answer within `timeout`.
        """

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script like `run`, and pass its output on as it arrives.

        Args:
            script: as in `run`.
            listen: called with each piece of output.
            stdin: the script's standard input.
            timeout: seconds.

        Returns:
            The exit code.

        Raises:
            HostUnreachableError: the worker did not answer within `timeout`; the script may still be running.
        """

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file or bytes to the worker, atomically.

        Args:
            source: a local path, or the content.
            remote: the destination, relative to the home directory; its parent is created.
            mode: the permissions of the copy.
        """

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker to this machine.

        Args:
            remote: the file, relative to the home directory.
            local: the destination.
        """

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read each file from the given offset, all in one round trip and in the given order.

        Args:
            pieces: a path and an offset each.

        Returns:
            For each piece at most `CHUNK_SIZE` bytes, None if the file does not exist.
        """

    def close(self) -> None:
        """Close the connection."""


class OpenHost(Host, Protocol):
    """A connection that core has opened through a transport: it knows its worker.

    Attributes:
        worker: the worker.
    """

    worker: Worker
