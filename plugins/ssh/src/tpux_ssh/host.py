"""`SshHost`: commands and files on a worker, over one SSH connection that is kept open."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import CHUNK_SIZE, HostUnreachableError, Job, Result, TpuxError, Worker, plain_reason
from tpux_ssh.address import Target
from tpux_ssh.host_keys import HostKeys
from tpux_ssh.keyfiles import login_keys
from tpux_ssh.section import section_of
from tpux_ssh.target import iap_command, jump_target, resolved, target_of

if TYPE_CHECKING:
    from fabric import Connection  # type: ignore[import-untyped]
    from paramiko import Transport

    from tpux_ssh.routes import Route, RouteStream
    from tpux_ssh.shell import Shell, Stream

POLL_TIMEOUT = 10.0
"""Seconds without a byte after which a worker that is polled counts as unreachable."""
_UPLOAD_CHUNK = 2**20


class SshHost:
    """A worker reached over SSH: one connection and one shell on it, each opened at first use.

    Args:
        worker: `address` is `[user@]host[:port]`; `details` may have `port`, `user` and `host_keys`.
        job: the job that the worker belongs to.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        self.worker = worker
        self._job = job
        self._target = target_of(worker, job)
        self._section = section_of(job)
        self._connection: Connection | None = None
        self._route: Route | None = None
        self._shell: Shell | None = None

    def open(self) -> None:
        """Connect and log in, unless already connected. A connection that is known to have ended is opened anew.

        Raises:
            HostUnreachableError: the worker is unreachable, or presented an untrusted host key.
        """
        if self._connection is not None and not self._connection.transport.is_active():
            self.close()
        if self._connection is None:
            try:
                self._route = self._choose_route()
                self._connection = self._log_in(self._target, self._route)
            except HostUnreachableError as error:
                error.where = error.where or f"worker {self.worker.index}"
                raise

    def _log_in(self, target: Target, route: Route | None = None, *, jump: bool = False) -> Connection:
        from tpux_ssh.connection import connect

        host_keys = HostKeys(self.worker, target, self._job, jump=jump)
        keys = login_keys(self._section.login_key, Path(resolved(self._job, "keys")))
        timeout = self._section.connect_timeout

        def log_in(stream: RouteStream) -> Connection:
            from tpux_ssh import login  # while the server begins to answer

            return login.log_in(stream, target, keys, host_keys, timeout)

        return connect(target, log_in, timeout, route)

    def _choose_route(self) -> Route:
        from tpux_ssh.routes import DirectRoute, JumpRoute, TunnelRoute

        if self._section.iap:
            return TunnelRoute(iap_command(self.worker, self._job, str(self._target.port)))
        if (jump := jump_target(self._job)) is not None:
            return JumpRoute(jump, self._job.directory, lambda: self._log_in(jump, jump=True))
        return DirectRoute()

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run `sh -c script` in the home directory and wait until it ends."""
        return self._run(script, (stdin,), len(stdin), timeout)

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script, pass its output to `listen` as it arrives, and return the exit code."""
        from tpux_ssh.shell import run_streaming

        with self._close_on_error(timeout):
            opening = self._section.connect_timeout
            return run_streaming(self._transport(), script, stdin, listen, opening=opening, timeout=timeout)

    def stream(self, script: str) -> Stream:
        """Start a script on a channel of its own, and return its output as it arrives.

        Raises:
            TpuxError: the server opens no further channel; the connection stays open.
            HostUnreachableError: the connection was lost.
        """
        from paramiko import ChannelException

        from tpux_ssh.shell import Stream

        timeout = self._section.connect_timeout
        with self._close_on_error(timeout):
            transport = self._transport()
            try:
                return Stream(transport, script, timeout)
            except ChannelException as error:
                text = f"{self._target}: the server opens no further channel: {error.text}"
                hint = "MaxSessions of its sshd_config may limit their number"
                refused = TpuxError(text, where=f"worker {self.worker.index}", hint=hint)
        raise refused

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file (or bytes) to the worker, atomically."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        content = (source,) if isinstance(source, bytes) else _chunks(source)
        chmod = ":" if mode == 0o600 else f'chmod {mode:o} "$path.tpux-$$"'  # the umask's, without a process
        script = _PUT.format(path=_quoted(remote), size=size, chmod=chmod)
        self._require_success(self._run(script, content, size, 60.0), f"put {remote}")

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker, atomically."""
        partial = local.with_name(f".{local.name}.{threading.get_ident()}")
        try:
            with partial.open("wb") as file:
                chunk = self._read_one(remote, 0)
                while chunk:
                    file.write(chunk)
                    chunk = self._read_one(remote, file.tell())
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read each file from the given offset, all in one round trip; at most `CHUNK_SIZE` bytes per file.

        Raises:
            HostUnreachableError: the worker did not answer, or a file became shorter while it was read.
        """
        calls = "".join(f"read_from {_quoted(path)} {offset}\n" for path, offset in pieces)
        with self._close_on_error(POLL_TIMEOUT):
            script = f"{_READ}{calls}{_END_OF_READ}"
            answer = self._open_shell().run(script, (), 0, 60.0, idle=POLL_TIMEOUT, prints_end=True)
        result = self._require_success(answer, "read")
        contents: list[bytes | None] = []
        rest = result.output
        for _ in pieces:
            line, _, rest = rest.partition(b"\n")
            size = int(line) if line.removeprefix(b"-").isdigit() else len(rest) + 1
            if size > len(rest):
                raise self._unreachable("a file was truncated while it was being read")
            contents.append(None if size < 0 else rest[:size])
            rest = rest[max(size, 0) :]
        if rest:
            raise self._unreachable("a file was truncated while it was being read")
        return contents

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._shell = self._connection, None, None
        route, self._route = self._route, None
        if connection is not None:
            from tpux_ssh.login import close

            close(connection)
        if route is not None:
            route.close()

    def _run(self, script: str, stdin: Iterable[bytes], size: int, timeout: float) -> Result:
        with self._close_on_error(timeout):
            return self._open_shell().run(script, stdin, size, timeout)

    @contextmanager
    def _close_on_error(self, timeout: float) -> Iterator[None]:
        """Close the connection after any error on it.

        Raises:
            HostUnreachableError: the worker did not answer in time, or the connection was lost.
        """
        from tpux_ssh.shell import CONNECTION_ERRORS

        try:
            yield
        except TimeoutError as error:
            raise self._lost(f"no response within {timeout:g} s") from error
        except CONNECTION_ERRORS as error:
            # paramiko's words for the same, if the connection ended before the request was sent.
            closed = str(error) in {"", "Socket is closed"}
            reason = "closed by the server" if closed else plain_reason(error)
            raise self._lost(f"connection lost: {reason}") from error
        except BaseException:
            # The shell would return this script's reply to the next request.
            self.close()
            raise

    def _lost(self, message: str) -> HostUnreachableError:
        """Close the connection, and return the error with what the server has said."""
        from tpux_ssh.server_text import it_said

        said = it_said(self._connection.transport) if self._connection is not None else ""
        self.close()
        return self._unreachable(f"{message}{said}")

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
        content = self.read((remote, offset))[0]
        if content is None:
            raise TpuxError(f"file not found: {remote}", where=f"worker {self.worker.index}")
        return content

    def _require_success(self, result: Result, action: str) -> Result:
        if not result.ok:
            reason = (result.text.splitlines() or [f"exit {result.code}"])[-1]
            raise TpuxError(f"{action}: {reason}", where=f"worker {self.worker.index}")
        return result

    def _unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(f"{self._target}: {message}", where=f"worker {self.worker.index}")


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


def _chunks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(_UPLOAD_CHUNK):
            yield chunk
