"""Run scripts on a worker over a byte stream that stays open: `RelayHost` makes a host of a transport's `Connection`.

The worker's end is a shell that runs `LOOP`. A request is a line with two lengths and a random marker, the script
followed by the marker, and the script's input. The reply is the output, the marker and the exit code. So a call costs
one round trip and a process, whatever it costs to open the stream.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tpux import CHUNK_SIZE, HostUnreachableError, Result, TpuxError, Worker

# A script without its marker was cut off by a lost connection and is not run, nor is a line without one a request.
# Input that a script does not read is discarded, because it would be parsed as the next request. A script with `own`
# prints the last line itself if it succeeds: with its output that is one packet. Each script redirects its own stderr:
# what this shell says of a script that was killed ("Killed") is not part of the output, and dash would redirect that
# too.
LOOP = r"""
cd && echo tpux-shell && while read -r size input mark own; do
  [ ${#mark} = 32 ] || exit
  script=$(head -c "$size")
  case $script in *"$mark") ;; *) exit ;; esac
  script="exec 2>&1
${script%"$mark"}"
  if [ "$own" ]; then mark=$mark sh -c "$script" </dev/null && continue
  elif [ "$input" = 0 ]; then sh -c "$script" </dev/null
  else head -c "$input" | (sh -c "$script"; code=$?; cat >/dev/null; exit $code)
  fi
  printf '%s %d\n' "$mark" $?
done
"""
GREETING = b"tpux-shell\n"
"""What `LOOP` prints first. Before it there may be what the startup files of a login shell print."""
POLL_TIMEOUT = 10.0
"""Seconds without a byte after which a worker that is polled counts as unreachable."""
_AHEAD = 256 * 1024
"""Bytes of input that may wait to be sent."""
_UPLOAD_CHUNK = 2**20
_UNSENT = "the script could not be sent"
_CODE = re.compile(rb" (\d{1,3})\n")


class Connection(Protocol):
    """A byte stream to a shell that runs `LOOP`. Used by one thread at a time."""

    @property
    def ended(self) -> str:
        """Return why nothing more comes; "" before that."""

    @property
    def unsent(self) -> int:
        """Return how many bytes have not been sent yet."""

    def send(self, data: bytes, /) -> None:
        """Send what can be sent now, and the rest in `wait`; one that sends all of it raises TimeoutError."""

    def wait(self, timeout: float, /) -> bool:
        """Wait until something has arrived or could be sent, or it has ended; return False if none has, in time."""

    def take(self) -> bytes:
        """Return what has arrived. Never waits."""

    def close(self) -> None:
        """Close it: what the shell has started in sessions of their own goes on."""


class Shell:
    """The shell at the other end of a connection. After `start` it is a `Stream`. Used by one thread at a time.

    Args:
        connection: the byte stream.
        opening: seconds until the shell has begun, beside the time of its first script.
    """

    def __init__(self, connection: Connection, opening: float) -> None:
        self._connection = connection
        self._opening = opening
        self._beginning = bytearray()
        self._begun = False
        self._reply = _Reply(b"")

    def is_open(self) -> bool:
        """Return whether it is not known to have ended; discard what processes of earlier scripts have printed."""
        self._connection.take()
        return not self._connection.ended

    def run(
        self,
        script: str,
        listen: Callable[[bytes], object],
        content: Iterable[bytes] = (),
        size: int = 0,
        *,
        timeout: float,
        renewed: bool = False,
        prints_end: bool = False,
    ) -> int:
        """Run a script, pass its output on, and return its exit code.

        Args:
            script: a script for `sh -c`.
            listen: called with each piece of output.
            content: its input, in chunks.
            size: the size of the input, in bytes.
            timeout: seconds to wait for the end, after the input has been sent.
            renewed: the timeout begins anew with each piece of output: the script prints what was asked for, and ends.
            prints_end: if it succeeds, the script, which has no input, prints the line `$mark 0` at its end.

        Raises:
            TimeoutError: it has not ended in time, or has sent nothing for too long.
            EOFError: the connection has ended; why.
        """
        connection, sending = self._connection, True
        pieces = itertools.chain((self._request(script, size, prints_end=prints_end),), content)
        deadline = time.monotonic() + timeout + (0.0 if self._begun else self._opening)
        while self._reply.code is None:
            while sending and connection.unsent < _AHEAD:
                if piece := next(pieces, b""):
                    connection.send(piece)
                    deadline = max(deadline, time.monotonic() + timeout)
                else:
                    sending = False
            unsent, begun = connection.unsent, self._begun
            if not connection.ended and not connection.wait(deadline - time.monotonic()):
                raise TimeoutError
            if connection.unsent < unsent:
                deadline = max(deadline, time.monotonic() + timeout)
            if (output := self.take()) is None:
                raise EOFError(connection.ended)
            if (self._begun and not begun) or (renewed and output):
                deadline = time.monotonic() + timeout
            if output:
                listen(output)
            if self._reply.code is None and time.monotonic() >= deadline:
                raise TimeoutError
        return self._reply.code

    def start(self, script: str) -> None:
        """Start a script, whose output `take` returns.

        Raises:
            EOFError: the connection has ended; why.
        """
        connection, deadline = self._connection, time.monotonic() + self._opening
        connection.send(self._request(script, 0))
        while connection.unsent and not connection.ended and connection.wait(deadline - time.monotonic()):
            pass
        if connection.ended or connection.unsent:
            raise EOFError(connection.ended or _UNSENT)

    def take(self) -> bytes | None:
        """Return what has arrived of the script's output, None once it or the connection has ended. Never waits."""
        if self._reply.code is not None:
            return None
        if not (piece := self._connection.take()):
            return None if self._connection.ended else b""
        if not self._begun:
            self._beginning += piece
            _, greeting, piece = bytes(self._beginning).partition(GREETING)
            self._begun = bool(greeting)
        return self._reply.feed(piece)

    def close(self) -> None:
        """Close the connection. Scripts that still run lose their output."""
        self._connection.close()

    def _request(self, script: str, size: int, *, prints_end: bool = False) -> bytes:
        marker = secrets.token_hex(16).encode()
        body = script.encode(errors="surrogateescape") + marker
        self._reply = _Reply(marker)
        return b"%d %d %s%s\n%s" % (len(body), size, marker, b" own" if prints_end else b"", body)


class _Reply:
    """The output of a script up to its marker, which the exit code follows.

    What comes after that is of processes that the script has left behind.

    Attributes:
        code: the exit code; None before the end.
    """

    def __init__(self, marker: bytes) -> None:
        self.code: int | None = None
        self._marker = marker
        self._rest = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """Return the output that is known to be none of the marker."""
        self._rest += piece
        at = self._rest.find(self._marker)
        if at < 0:
            lengths = range(min(len(self._rest), len(self._marker) - 1), 0, -1)
            held = next((length for length in lengths if self._rest.endswith(self._marker[:length])), 0)
            at = len(self._rest) - held
        elif end := _CODE.match(self._rest, at + len(self._marker)):
            self.code = int(end[1])
        output = bytes(self._rest[:at])
        del self._rest[:at]
        return output


class RelayHost(ABC):
    """A worker whose transport has a `Connection` to a shell there: one that is opened at first use and kept open.

    Args:
        worker: the worker.
        opening: seconds until a connection is open and its shell has begun.
    """

    def __init__(self, worker: Worker, opening: float) -> None:
        self.worker = worker
        self.opening = opening
        self._shell: Shell | None = None

    @abstractmethod
    def connect(self) -> Connection:
        """Open a connection.

        Raises:
            EOFError: it cannot be opened; why.
        """

    @abstractmethod
    def unreachable(self, message: str) -> HostUnreachableError:
        """Return the error that names the worker."""

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait until it ends."""
        return self._run(script, (stdin,), len(stdin), timeout)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script, pass its output to `listen` as it arrives, and return the exit code."""
        with self.close_on_error(timeout):
            return self._open_shell().run(script, listen, (stdin,), len(stdin), timeout=timeout)

    def stream(self, script: str) -> Shell:
        """Start a script on a connection of its own, and return its output as it arrives."""
        shell = None
        try:
            shell = Shell(self.connect(), self.opening)
            shell.start(script)
        except BaseException as error:
            if shell is not None:
                shell.close()
            if isinstance(error, (EOFError, TimeoutError)):
                raise self.unreachable(str(error) or _UNSENT) from error
            raise
        return shell

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) to the worker, atomically."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        content = (source,) if isinstance(source, bytes) else _chunks(source, size)
        chmod = ":" if mode == 0o600 else f'chmod {mode:o} "$path.tpux-$$"'  # the umask's, without a process
        script = _PUT.format(path=_quoted(remote), size=size, chmod=chmod)
        self._require_success(self._run(script, content, size, 60.0), f"put {remote}")

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker, atomically."""
        partial = local.with_name(f".{local.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("wb") as file:
                while chunk := self._read_one(remote, file.tell()):
                    file.write(chunk)
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read each file from the given offset, all in one round trip; at most `CHUNK_SIZE` bytes per file.

        Raises:
            HostUnreachableError: the worker did not answer, or a file became shorter while it was read.
        """
        calls = "".join(f"read_from {_quoted(path)} {offset}\n" for path, offset in pieces)
        answer = self._run(f"{_READ}{calls}{_END_OF_READ}", (), 0, POLL_TIMEOUT, renewed=True, prints_end=True)
        rest = self._require_success(answer, "read").output
        contents: list[bytes | None] = []
        for _ in pieces:
            line, _, rest = rest.partition(b"\n")
            size = int(line) if line.removeprefix(b"-").isdigit() else len(rest) + 1
            if size > len(rest):
                raise self._lost("a file was truncated while it was being read")
            contents.append(None if size < 0 else rest[:size])
            rest = rest[max(size, 0) :]
        if rest:
            raise self._lost("a file was truncated while it was being read")
        return contents

    def close(self) -> None:
        """Close the connection."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()

    @contextmanager
    def close_on_error(self, timeout: float) -> Iterator[None]:
        """Close the connection after any error on it.

        Raises:
            HostUnreachableError: the worker did not answer in time, or the connection was lost.
        """
        try:
            yield
        except TimeoutError as error:
            raise self._lost(f"no response within {timeout:g} s") from error
        except EOFError as error:
            raise self._lost(str(error)) from error
        except BaseException:
            self.close()  # the shell would return this script's reply to the next request
            raise

    def _run(
        self,
        script: str,
        content: Iterable[bytes],
        size: int,
        timeout: float,
        *,
        renewed: bool = False,
        prints_end: bool = False,
    ) -> Result:
        output: list[bytes] = []
        with self.close_on_error(timeout):
            code = self._open_shell().run(
                script, output.append, content, size, timeout=timeout, renewed=renewed, prints_end=prints_end
            )
        return Result(code, b"".join(output))

    def _open_shell(self) -> Shell:
        if self._shell is not None and not self._shell.is_open():
            self.close()  # nothing was sent yet: it has ended while it was idle
        if self._shell is None:
            self._shell = Shell(self.connect(), self.opening)
        return self._shell

    def _read_one(self, remote: str, offset: int) -> bytes:
        if (content := self.read((remote, offset))[0]) is None:
            raise TpuxError(f"file not found: {remote}", where=f"worker {self.worker.index}")
        return content

    def _require_success(self, result: Result, action: str) -> Result:
        if not result.ok:
            reason = (result.text.splitlines() or [f"exit {result.code}"])[-1]
            raise TpuxError(f"{action}: {reason}", where=f"worker {self.worker.index}")
        return result

    def _lost(self, message: str) -> HostUnreachableError:
        error = self.unreachable(message)
        self.close()
        return error


# Prints for each file a size (-1 if the file does not exist) and that many bytes. Nothing is started to read a
# file that has no new bytes, so polling an idle program costs one process (wc), and is answered in one packet.
_READ = """
sizes=
read_from() {
  if ! [ -e "$1" ]; then sizes="$sizes-1
"; return; fi
  size=$(wc -c <"$1") || exit 1
  size=$((size - $2))
  if [ "$size" -le 0 ]; then sizes="${sizes}0
"; return; fi
  if [ "$size" -gt CHUNK_SIZE ]; then size=CHUNK_SIZE; fi
  printf '%s%d\\n' "$sizes" "$size"
  sizes=
  if [ "$2" = 0 ]; then head -c "$size" "$1" 2>/dev/null || :
  else tail -c "+$(($2 + 1))" "$1" 2>/dev/null | head -c "$size"; fi
}
""".replace("CHUNK_SIZE", str(CHUNK_SIZE))
_END_OF_READ = """printf '%s%s 0\\n' "$sizes" "$mark"
"""

_PUT = """
umask 077
path={path}
case $path in */*) mkdir -p "${{path%/*}}" || exit ;; esac
trap 'rm -f "$path.tpux-$$"' EXIT
cat >"$path.tpux-$$" && {chmod} || exit
# A lost connection may have truncated the input.
if [ "$(wc -c <"$path.tpux-$$")" -ne {size} ]; then echo 'incomplete upload'; exit 1; fi
mv -f "$path.tpux-$$" "$path" && trap - EXIT
"""


def _quoted(remote: str) -> str:
    return shlex.quote(remote.removeprefix("~/"))


def _chunks(source: Path, size: int) -> Iterator[bytes]:
    """Yield exactly `size` bytes: the shell would take the rest of a file that grows for requests."""
    with source.open("rb") as file:
        while size:
            if not (chunk := file.read(min(size, _UPLOAD_CHUNK))):
                raise OSError(f"{source} became shorter while it was copied")
            yield chunk
            size -= len(chunk)
