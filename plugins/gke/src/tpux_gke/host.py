"""Transport `gke`: a shell in the pod, over one exec that is kept open, as the plugin ssh keeps one over SSH."""

from __future__ import annotations

import itertools
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tpux import CHUNK_SIZE, HostUnreachableError, Job, Result, TpuxError, Worker
from tpux_gke.client import client_of
from tpux_gke.execs import OPENING, Exec
from tpux_gke.scripts import GREETING, SESSION

_AHEAD = 256 * 1024
"""Bytes of input that may wait to be sent."""


class Session:
    """One exec and the shell at its other end. It is also a `Stream`, with one script. Used by one thread at a time.

    Args:
        worker: the pod.
        job: the job, with the cluster that it is in.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        client = client_of(job.resolved.get("gke", {}))
        self._exec = Exec(client, worker.details["pod"], ["/bin/sh", "-c", SESSION, "tpux-session"])
        self._reply = _Reply(b"")
        self._greeting = bytearray()
        self._greeted = False

    def is_open(self) -> bool:
        """Return whether the connection has not ended, as far as that is known here: idle ones are dropped."""
        self._exec.take()
        return not self._exec.ended

    def exchange(
        self, script: str, content: Iterable[bytes], size: int, timeout: float, listen: Callable[[bytes], object]
    ) -> int:
        """Run a script, pass its output on, and return its exit code.

        Raises:
            TimeoutError: it has not ended in time after its input was sent.
            EOFError: the connection has ended; why.
        """
        pieces = self.request(script, content, size)
        deadline = time.monotonic() + timeout + (0.0 if self._greeted else OPENING)
        more = True
        while self._reply.code is None:
            while more and self._exec.unsent < _AHEAD:
                if piece := next(pieces, b""):
                    self._exec.send(piece)
                    deadline = max(deadline, time.monotonic() + timeout)
                else:
                    more = False
            unsent, greeted = self._exec.unsent, self._greeted
            if not self._exec.ended and not self._exec.wait(deadline - time.monotonic()):
                raise TimeoutError
            if self._exec.unsent < unsent or self._greeted != greeted:
                deadline = max(deadline, time.monotonic() + timeout)
            if (output := self.take()) is None:
                raise EOFError(self._exec.ended)
            if output:
                listen(output)
            if self._reply.code is None and time.monotonic() >= deadline:
                raise TimeoutError
        return self._reply.code

    def request(self, script: str, content: Iterable[bytes], size: int) -> Iterator[bytes]:
        """Begin a request, and return the bytes to send."""
        marker = secrets.token_hex(16).encode()
        body = script.encode(errors="surrogateescape") + marker
        self._reply = _Reply(marker)
        first = f"{len(body)} {size} {marker.decode()}\n".encode() + body
        return itertools.chain((first,), content)

    def send_all(self, pieces: Iterable[bytes]) -> None:
        """Send a request without looking at the output.

        Raises:
            EOFError: the connection has ended; why.
        """
        deadline = time.monotonic() + OPENING
        for piece in pieces:
            self._exec.send(piece)
        while self._exec.unsent and not self._exec.ended and self._exec.wait(deadline - time.monotonic()):
            pass
        if self._exec.ended or self._exec.unsent:
            raise EOFError(self._exec.ended or "the script could not be sent")

    def take(self) -> bytes | None:
        """Return what has arrived of the script's output, None once it or the connection has ended. Never waits."""
        if self._reply.code is not None:
            return None
        piece = self._exec.take()
        if not piece:
            return None if self._exec.ended else b""
        if not self._greeted:
            self._greeting += piece
            _, found, rest = self._greeting.partition(GREETING)
            if not found:
                return b""
            self._greeted, piece = True, bytes(rest)
        return self._reply.feed(piece)

    def close(self) -> None:
        """Close the connection: what the script at the other end has started goes on."""
        self._exec.close()


class _Reply:
    """The output of a script up to its marker, which the exit code follows.

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
        else:
            code, end, _ = self._rest[at + len(self._marker) :].partition(b"\n")
            self.code = int(code) if end else None  # a process in the background may write more
        output = bytes(self._rest[:at])
        del self._rest[:at]
        return output


class GkeHost:
    """A pod: one exec, opened at first use, and again when the API server has dropped it.

    Args:
        worker: `details` has the pod's name.
        job: the job that it belongs to.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        self.worker = worker
        self._job = job
        self._session: Session | None = None

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait until it ends."""
        return self._run(script, (stdin,) if stdin else (), len(stdin), timeout)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script, pass its output to `listen` as it arrives, and return the exit code."""
        return self._exchange(script, (stdin,) if stdin else (), len(stdin), timeout, listen)

    def stream(self, script: str) -> Session:
        """Start a script in a session of its own, and return its output as it arrives."""
        session = None
        try:
            session = Session(self.worker, self._job)
            session.send_all(session.request(script, (), 0))
        except EOFError as error:
            if session is not None:
                session.close()
            raise self._unreachable(str(error)) from error
        return session

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) to the pod, atomically."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        script = _PUT.format(path=_quoted(remote), size=size, mode=f"{mode:o}")
        content = ((source,) if source else ()) if isinstance(source, bytes) else _chunks(source, size)
        self._require_success(self._run(script, content, size, 60.0), f"put {remote}")

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the pod, atomically."""
        partial = local.with_name(f".{local.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("wb") as file:
                while chunk := self._read_one(remote, file.tell()):
                    file.write(chunk)
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read each file from the given offset, all in one round trip; at most `CHUNK_SIZE` bytes per file."""
        calls = "".join(f"read_from {_quoted(path)} {offset}\n" for path, offset in pieces)
        rest = self._require_success(self._run(f"{_READ}{calls}", (), 0, 30.0), "read").output
        contents: list[bytes | None] = []
        for _ in pieces:
            line, _, rest = rest.partition(b"\n")
            size = int(line) if line.removeprefix(b"-").isdigit() else len(rest) + 1
            if size > len(rest):
                raise self._lost("a file was truncated while it was being read")
            contents.append(None if size < 0 else rest[:size])
            rest = rest[max(size, 0) :]
        return contents

    def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _run(self, script: str, content: Iterable[bytes], size: int, timeout: float) -> Result:
        output: list[bytes] = []
        code = self._exchange(script, content, size, timeout, output.append)
        return Result(code, b"".join(output))

    def _exchange(
        self, script: str, content: Iterable[bytes], size: int, timeout: float, listen: Callable[[bytes], object]
    ) -> int:
        try:
            if self._session is not None and not self._session.is_open():
                self.close()  # nothing was sent: an idle connection is dropped by what is between here and the pod
            if self._session is None:
                self._session = Session(self.worker, self._job)
            return self._session.exchange(script, content, size, timeout, listen)
        except TimeoutError as error:
            raise self._lost(f"no response within {timeout:g} s") from error
        except EOFError as error:
            raise self._lost(str(error)) from error
        except BaseException:
            self.close()  # the reply to this script would be that to the next one
            raise

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
        self.close()
        return self._unreachable(message)

    def _unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(f"pod {self.worker.details['pod']}: {message}", where=f"worker {self.worker.index}")


_READ = f"""
read_from() {{
  if ! [ -e "$1" ]; then echo -1; return; fi
  size=$(wc -c <"$1") || exit 1
  size=$((size - $2))
  if [ "$size" -le 0 ]; then echo 0; return; fi
  if [ "$size" -gt {CHUNK_SIZE} ]; then size={CHUNK_SIZE}; fi
  echo "$size"
  tail -c "+$(($2 + 1))" "$1" 2>/dev/null | head -c "$size"
}}
"""
"""Prints for each file a size (-1 if the file does not exist) and that many bytes."""

_PUT = """
umask 077
path={path}
case $path in */*) mkdir -p "${{path%/*}}" || exit ;; esac
trap 'rm -f "$path.tpux-$$"' EXIT
cat >"$path.tpux-$$" && chmod {mode} "$path.tpux-$$" || exit
if [ "$(wc -c <"$path.tpux-$$")" -ne {size} ]; then echo 'incomplete upload'; exit 1; fi
mv -f "$path.tpux-$$" "$path" && trap - EXIT
"""


def _quoted(remote: str) -> str:
    return shlex.quote(remote.removeprefix("~/"))


def _chunks(source: Path, size: int) -> Iterator[bytes]:
    """Yield exactly `size` bytes: the shell would take the rest of a file that grows for requests."""
    with source.open("rb") as file:
        while size:
            if not (chunk := file.read(min(size, 2**20))):
                raise OSError(f"{source} became shorter while it was copied")
            yield chunk
            size -= len(chunk)
