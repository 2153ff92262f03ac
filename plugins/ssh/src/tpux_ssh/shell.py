"""Run scripts over an open connection: many on one persistent shell, or one on its own channel with streaming output.

A new channel per command costs two round trips and a login shell. On the persistent shell a command costs one
round trip and is ten times cheaper (docs/benchmarks.md).
"""

from __future__ import annotations

import secrets
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from paramiko import Channel, SSHException, Transport

from tpux import Result
from tpux_ssh.server_text import listening

CONNECTION_ERRORS = (EOFError, SSHException, OSError, socket.timeout)
"""Exceptions that a lost connection raises. An unresponsive one raises TimeoutError."""

_WINDOW_SIZE = 2**31 - 1  # never full, so the worker can reply while it is still receiving input
_FOLLOW_WINDOW = 2**22
"""Bytes that a script is ahead of who follows it: memory here. Only of one whose input the server takes at once."""
_SHORT_INPUT = 2**17
_RECV_SIZE = 2**24
_PACKET_SIZE = 2**15
_SEND_TIMEOUT = 60.0
_POLL_INTERVAL = 0.5
_CODE_SIZE = 9
"""More bytes than the exit code takes at the end of a reply, with a blank and a line break."""

# Each request is a line with two lengths and a random marker, the script followed by the marker, and the input.
# A script without its marker was cut off by a lost connection and is not run. Input that a script does not
# read is discarded, because it would be parsed as the next request. A script with `own` prints the last line itself if
# it succeeds: with its output that is one packet, which wakes the threads of the connection once.
_REQUEST_LOOP = r"""
cd && echo tpux-shell && while read -r size input mark own; do
  script=$(head -c "$size")
  case $script in *"$mark") ;; *) exit ;; esac
  script=${script%"$mark"}
  if [ "$own" ]; then mark=$mark sh -c "$script" </dev/null && continue
  elif [ "$input" = 0 ]; then sh -c "$script" </dev/null
  else head -c "$input" | (sh -c "$script"; code=$?; cat >/dev/null; exit $code)
  fi
  printf '%s %d\n' "$mark" $?
done 2>&1
"""

# The subshell lets the outer shell report a signal that ends the script as an exit code; the redirection applies
# to the script alone, so the outer shell's own message ("Killed") is not part of the output.
_STREAMING_SCRIPT = """
cd && echo tpux-shell && (
{script}
) 2>&1
exit $?"""


class Shell:
    """A persistent shell on a worker. Used by one thread at a time.

    Args:
        transport: the connection; the shell is one of its channels.
        timeout: seconds to wait until the shell is open.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._channel = transport.open_session(window_size=_WINDOW_SIZE, timeout=timeout)
        self._channel.settimeout(timeout)
        self._output = _Output(self._channel)
        self._channel.exec_command(f"exec sh -c {shlex.quote(_REQUEST_LOOP)}")

    def run(
        self,
        script: str,
        stdin: Iterable[bytes],
        size: int,
        timeout: float,
        idle: float | None = None,
        *,
        prints_end: bool = False,
    ) -> Result:
        """Run a script and wait until it ends.

        Args:
            script: a script for `sh -c`.
            stdin: its input, in chunks.
            size: total size of the input, in bytes.
            timeout: seconds to wait for the end, after the input has been sent.
            idle: seconds to wait for each byte of the output; by default there is no such limit.
            prints_end: if it succeeds, the script, which has no input, prints the line `$mark 0` at its end.

        Returns:
            The exit code and the output.

        Raises:
            TimeoutError: the script did not end in time, sent nothing for too long, or could not be sent for a minute.
            EOFError: the connection or the shell has ended.
            SSHException, OSError: the connection was lost.
        """
        marker = secrets.token_hex(16)
        body = script.encode(errors="surrogateescape") + marker.encode()
        self._channel.settimeout(idle or _SEND_TIMEOUT)
        own = " own" if prints_end else ""
        with self._output.heard():
            send_all(self._channel, f"{len(body)} {size} {marker}{own}\n".encode() + body)
            for chunk in stdin:
                send_all(self._channel, chunk)
            return self._read_reply(marker.encode(), time.monotonic() + timeout, idle or timeout)

    def close(self) -> None:
        """Close the shell. Scripts that still run lose their output."""
        self._channel.close()

    def _read_reply(self, marker: bytes, deadline: float, idle: float) -> Result:
        reply = bytearray()
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._channel.settimeout(min(remaining, idle))
            if (chunk := self._output.receive()) is None:
                raise EOFError
            reply += chunk
            if (end := _find_end(reply, marker)) is not None:
                return Result(int(reply[end + len(marker) :]), bytes(reply[:end]))


def _find_end(reply: bytearray, marker: bytes) -> int | None:
    """Return where a reply has the marker, which the exit code follows; None if it is not complete."""
    end = reply.rfind(marker, max(0, len(reply) - len(marker) - _CODE_SIZE))
    code = reply[end + len(marker) :] if end >= 0 else b""
    return end if code.endswith(b"\n") and code.strip().isdigit() else None


def run_streaming(
    transport: Transport,
    script: str,
    stdin: bytes,
    listen: Callable[[bytes], None],
    *,
    opening: float,
    timeout: float,
) -> int:
    """Run a script on its own channel and pass its output on as it arrives.

    Args:
        transport: the connection.
        script: a script for `sh -c`.
        stdin: its input.
        listen: called with each chunk of output.
        opening: seconds to wait until the channel is open.
        timeout: seconds to wait until the script ends.

    Returns:
        The exit code.

    Raises:
        TimeoutError: the script did not end in time.
        EOFError: the connection has ended.
        SSHException, OSError: the connection was lost.
    """
    deadline = time.monotonic() + timeout
    window = _FOLLOW_WINDOW if len(stdin) <= _SHORT_INPUT else _WINDOW_SIZE
    channel = transport.open_session(window_size=window, timeout=opening)
    try:
        channel.settimeout(opening)
        output = _Output(channel)
        channel.exec_command(_streaming_command(script))
        with output.heard():
            send_all(channel, stdin)
            channel.shutdown_write()
            for chunk in _chunks(channel, output, deadline):
                listen(chunk)
            if not output.started:  # the exit code is that of a program in place of the script
                raise EOFError
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        if (code := channel.recv_exit_status()) < 0:
            raise EOFError
        return code
    finally:
        channel.close()


class Stream:
    """The output of a script that runs on a channel of its own, taken without waiting for it.

    Args:
        transport: the connection.
        script: a script for `sh -c`.
        timeout: seconds to wait until the channel is open.

    Raises:
        EOFError, SSHException, OSError: the connection was lost, or the server opens no further channel.
    """

    def __init__(self, transport: Transport, script: str, timeout: float) -> None:
        self._channel = transport.open_session(window_size=_WINDOW_SIZE, timeout=timeout)
        self._channel.settimeout(timeout)
        self._channel.exec_command(_streaming_command(script))
        self._channel.shutdown_write()
        self._channel.settimeout(0.0)
        self._output = _Output(self._channel)

    def take(self) -> bytes | None:
        """Return what has arrived since the last call, None once the script or the connection has ended."""
        try:
            return self._output.receive()
        except TimeoutError:  # nothing has arrived
            return b""

    def close(self) -> None:
        """Close the channel: the server closes the script's standard output."""
        self._channel.close()


def _streaming_command(script: str) -> str:
    return f"exec sh -c {shlex.quote(_STREAMING_SCRIPT.format(script=script))}"


class _Output:
    """The output of a script on a channel, without what the login shell's startup files print before it.

    Attributes:
        started: whether the script's first line has been received.
    """

    def __init__(self, channel: Channel) -> None:
        self.started = False
        self._channel = channel
        self._beginning = bytearray()

    def receive(self) -> bytes | None:
        """Return what has arrived, which may be b"" before the script has started; None once it has ended.

        Raises:
            TimeoutError: nothing has arrived.
        """
        if not (piece := self._channel.recv(_RECV_SIZE)):
            return None
        if self.started:
            return piece
        self._beginning += piece
        _, greeting, rest = self._beginning.partition(b"tpux-shell\n")
        if not greeting:
            return b""
        self.started = True
        if (heard := listening(self._channel.get_transport())) is not None:
            heard.begin()
        return bytes(rest)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """After an error, keep for its message what a program in place of the script has printed."""
        try:
            yield
        except CONNECTION_ERRORS:
            if not self.started and (heard := listening(self._channel.get_transport())) is not None:
                self._channel.settimeout(0.0)
                with suppress(TimeoutError):
                    while self.receive() is not None:
                        pass
                errors = self._channel.recv_stderr(_RECV_SIZE) if self._channel.recv_stderr_ready() else b""
                heard.output = bytes(self._beginning) + errors
            raise


def _chunks(channel: Channel, output: _Output, deadline: float) -> Iterator[bytes]:
    """Yield the output of a script until it ends."""
    while True:
        channel.settimeout(min(_POLL_INTERVAL, max(0.01, deadline - time.monotonic())))
        try:
            chunk = output.receive()
        except TimeoutError:
            if channel.exit_status_ready():
                return  # a background process that the script started keeps the output open
            if time.monotonic() >= deadline:
                raise
            continue
        if chunk is None:
            return
        if chunk:
            yield chunk


def send_all(channel: Channel, data: bytes) -> None:
    """Send all of the data.

    Raises:
        EOFError: the channel is closed.
    """
    sent = 0
    while sent < len(data):
        # paramiko sends at most one packet (32 KiB) per call, and returns 0 when the channel is closed.
        count = channel.send(data[sent : sent + _PACKET_SIZE])
        if count == 0:
            raise EOFError
        sent += count
