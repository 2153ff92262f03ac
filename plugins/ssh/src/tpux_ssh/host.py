"""A worker over ssh."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import PIECE, HostUnreachableError, Job, Result, TpuxError, Worker
from tpux_ssh.host_keys import HostKeys
from tpux_ssh.keyfiles import login_keys
from tpux_ssh.section import section_of
from tpux_ssh.target import target_of

if TYPE_CHECKING:
    from fabric import Connection  # type: ignore[import-untyped]
    from paramiko import Transport

    from tpux_ssh.shell import Shell

_UPLOAD_CHUNK = 2**20


class SshHost:
    """A worker over ssh: one connection, and one shell on it, both opened when they are first needed.

    Args:
        worker: `address` is `[user@]host[:port]`; of `details`, `port`, `user` and `host_keys` count.
        job: whose worker it is.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        self.worker = worker
        self._job = job
        self._target = target_of(worker, job)
        self._section = section_of(job)
        self._connection: Connection | None = None
        self._shell: Shell | None = None

    def open(self) -> None:
        """Log in, unless that is done.

        Raises:
            HostUnreachableError: it was not possible, and why.
        """
        from tpux_ssh.authentication import KeyAuth
        from tpux_ssh.connection import connect

        if self._connection is None:
            host_keys = HostKeys(self.worker, self._target, self._job)
            auth = KeyAuth(self._target.user, login_keys(self._section.login_key))
            try:
                self._connection = connect(self._target, auth, host_keys, self._section.connect_timeout)
            except HostUnreachableError as error:
                error.where = error.where or f"worker {self.worker.index}"
                raise

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait for its end."""
        return self._run(script, (stdin,), len(stdin), timeout)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """The same, with its output told as it comes; the exit code."""
        from tpux_ssh.shell import run_streaming

        with self._close_on_error(timeout):
            opening = self._section.connect_timeout
            return run_streaming(self._transport(), script, stdin, listen, opening=opening, timeout=timeout)

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) there: whole or not at all."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        content = (source,) if isinstance(source, bytes) else _chunks(source)
        script = _PUT.format(path=_quoted(remote), size=size, mode=f"{mode:o}")
        self._require_success(self._run(script, content, size, 60.0), f"put {remote}")

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from there."""
        partial = local.with_name(f".{local.name}.{threading.get_ident()}")
        try:
            with partial.open("wb") as file:
                piece = self._read_one(remote, 0)
                while piece:
                    file.write(piece)
                    piece = self._read_one(remote, file.tell())
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """In one round trip, of each file what it holds from that offset on."""
        calls = "".join(f"piece {_quoted(path)} {offset}\n" for path, offset in pieces)
        result = self._require_success(self._run(_READ + calls, (), 0, 60.0), "read")
        answers, rest = [], result.output
        for _ in pieces:
            line, _, rest = rest.partition(b"\n")
            size = int(line) if line.removeprefix(b"-").isdigit() else len(rest) + 1
            if size > len(rest):
                raise self._unreachable("a file was cut while it was being read")
            answers.append(None if size < 0 else rest[:size])
            rest = rest[max(size, 0) :]
        if rest:
            raise self._unreachable("a file was cut while it was being read")
        return answers

    def close(self) -> None:
        """End the connection."""
        connection, self._connection, self._shell = self._connection, None, None
        if connection is not None:
            from tpux_ssh.connection import close

            close(connection)

    def _run(self, script: str, stdin: Iterable[bytes], size: int, timeout: float) -> Result:
        with self._close_on_error(timeout):
            return self._open_shell().run(script, stdin, size, timeout)

    @contextmanager
    def _close_on_error(self, timeout: float) -> Iterator[None]:
        """Drop the connection when anything goes wrong on it."""
        from tpux_ssh.shell import CONNECTION_ERRORS

        try:
            yield
        except TimeoutError as error:
            self.close()
            raise self._unreachable(f"no answer within {timeout:g} s") from error
        except CONNECTION_ERRORS as error:
            self.close()
            raise self._unreachable(f"the connection broke: {str(error) or 'the other end closed it'}") from error
        except BaseException:
            # Interrupted in the middle: what comes next on this shell is the answer to this script.
            self.close()
            raise

    def _transport(self) -> Transport:
        self.open()
        if self._connection is None:
            raise EOFError
        transport: Transport = self._connection.transport
        return transport

    def _open_shell(self) -> Shell:
        from tpux_ssh.shell import Shell

        transport = self._transport()
        if self._shell is None:
            self._shell = Shell(transport, self._section.connect_timeout)
        return self._shell

    def _read_one(self, remote: str, offset: int) -> bytes:
        piece = self.read((remote, offset))[0]
        if piece is None:
            raise TpuxError(f"there is no file {remote}", where=f"worker {self.worker.index}")
        return piece

    def _require_success(self, result: Result, what: str) -> Result:
        if not result.ok:
            said = (result.text.splitlines() or [f"exit {result.code}"])[-1]
            raise TpuxError(f"{what}: {said}", where=f"worker {self.worker.index}")
        return result

    def _unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(f"{self._target}: {message}", where=f"worker {self.worker.index}")


# A size for each piece, -1 for a file that is not there, and as many bytes. A run that is silent costs one
# process: where nothing is new, nothing is started to read it.
_READ = """
piece() {
  if ! [ -e "$1" ]; then echo -1; return; fi
  size=$(wc -c <"$1") || exit 1
  size=$((size - $2))
  if [ "$size" -le 0 ]; then echo 0; return; fi
  if [ "$size" -gt PIECE ]; then size=PIECE; fi
  echo "$size"
  tail -c "+$(($2 + 1))" "$1" 2>/dev/null | head -c "$size"
}
""".replace("PIECE", str(PIECE))

_PUT = """
umask 077
path={path}
case $path in */*) mkdir -p "${{path%/*}}" || exit ;; esac
trap 'rm -f "$path.tpux-$$"' EXIT
cat >"$path.tpux-$$" && chmod {mode} "$path.tpux-$$" || exit
# Not what a broken connection left of it.
if [ "$(wc -c <"$path.tpux-$$")" -ne {size} ]; then echo 'it did not arrive whole'; exit 1; fi
mv -f "$path.tpux-$$" "$path"
"""


def _quoted(remote: str) -> str:
    return shlex.quote(remote.removeprefix("~/"))


def _chunks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while piece := file.read(_UPLOAD_CHUNK):
            yield piece
