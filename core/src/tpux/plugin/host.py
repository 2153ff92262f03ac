"""An open connection to a worker, as every transport gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tpux.plugin.machines import Worker
from tpux.plugin.steps import Result

CHUNK_SIZE = 4 * 1024 * 1024
"""How many bytes `Host.read` gives of one file at the most."""


class Host(Protocol):
    """A worker that can be reached. Any method may raise `HostUnreachableError`; none retries.

    A host is used by one thread at a time.
    """

    worker: Worker

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait for its end, `timeout` seconds at most.

        Scripts are core's own and short; whatever comes from a user travels in `stdin` or a file.

        Raises:
            HostUnreachableError: the worker did not answer, or not in time.
        """

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """The same, with its output told piece by piece as it comes; the exit code.

        Raises:
            HostUnreachableError: the worker did not answer, or not in time; what it runs may go on there.
        """

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) there: whole or not at all, with that mode, in a directory that is made."""

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from there."""

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """In one round trip, of each file what it holds from that offset on, `PIECE` bytes at the most.

        The pieces are read in their order. None stands for a file that does not exist.
        """

    def close(self) -> None:
        """End the connection."""
