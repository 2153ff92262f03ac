"""One shell on a worker that is kept open, to which scripts are written one after another.

A channel a command costs two round trips and a login shell each time; on this one a warm command is one
round trip, and ten times cheaper (docs/benchmarks.md).
"""

from __future__ import annotations

import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from paramiko import Channel, SSHException, Transport

from tpux import Result

_WINDOW = 2**31 - 1  # never full: the worker can always answer, also while it is still being written to
_RECV_SIZE = 2**24
_PACKET_SIZE = 2**15
_STALL = 60.0
_POLL_INTERVAL = 0.5

# Each request: a line with two lengths and a mark, the script followed by the mark, the input.
# The mark after the script tells a whole script from one that was cut off with the connection: half a
# script is never run. What a script leaves of its input is read away, or it would be taken for a request.
_LOOP = r"""
cd && echo tpux-shell && while read -r size input mark; do
  script=$(head -c "$size")
  case $script in *"$mark") ;; *) exit ;; esac
  script=${script%"$mark"}
  if [ "$input" = 0 ]; then sh -c "$script" </dev/null
  else head -c "$input" | (sh -c "$script"; code=$?; cat >/dev/null; exit $code)
  fi
  printf '%s %d\n' "$mark" $?
done 2>&1
"""

CONNECTION_ERRORS = (EOFError, SSHException, OSError, socket.timeout)
"""What a broken connection raises, beside the TimeoutError of one that is silent."""

# In brackets: the shell stays, and tells by which signal what is in them was ended; its own word for it is left out.
_ONCE = """
cd && echo tpux-shell && (
{script}
) 2>&1
exit $?"""


class Shell:
    """A shell on a worker. Used by one thread at a time.

    Args:
        transport: the connection; the shell is one channel of it.
        timeout: seconds that opening it may take.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._channel = transport.open_session(window_size=_WINDOW, timeout=timeout)
        self._channel.settimeout(timeout)
        self._channel.exec_command(f"exec sh -c {shlex.quote(_LOOP)}")
        self._started = False

    def run(self, script: str, stdin: Iterable[bytes], size: int, timeout: float) -> Result:
        """Run a script, and wait for its end.

        Args:
            script: for `sh -c`.
            stdin: its input, in pieces.
            size: how many bytes that is.
            timeout: seconds to wait for the end, once all has been sent.

        Raises:
            TimeoutError: it did not end in time, or took no input for a minute.
            EOFError: the connection, or the shell, has ended.
            SSHException, OSError: the connection broke.
        """
        mark = secrets.token_hex(16)
        body = script.encode(errors="surrogateescape") + mark.encode()
        self._channel.settimeout(_STALL)
        send(self._channel, f"{len(body)} {size} {mark}\n".encode() + body)
        for piece in stdin:
            send(self._channel, piece)
        return self._read_reply(mark.encode(), time.monotonic() + timeout)

    def close(self) -> None:
        """End it; the scripts that it runs lose their output."""
        self._channel.close()

    def _read_reply(self, mark: bytes, deadline: float) -> Result:
        end = re.compile(rb"%s (\d+)\n\Z" % mark)
        answer = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            piece = self._channel.recv(_RECV_SIZE)
            if not piece:
                raise EOFError
            answer += piece
            if not self._started:
                self._started = skip_startup_output(answer)
            if self._started and (found := end.search(answer, max(0, len(answer) - len(mark) - 9))):
                return Result(int(found[1]), bytes(answer[: found.start()]))


def run_streaming(
    transport: Transport,
    script: str,
    stdin: bytes,
    listen: Callable[[bytes], None],
    *,
    opening: float,
    timeout: float,
) -> int:
    """Run a script; its exit code.

    Args:
        transport: the connection.
        script: for `sh -c`.
        stdin: its input.
        listen: hears its output as it comes.
        opening: seconds that opening the channel may take.
        timeout: seconds to wait for the end.

    Raises:
        TimeoutError: it did not end in time.
        EOFError: the connection has ended.
        SSHException, OSError: the connection broke.
    """
    deadline = time.monotonic() + timeout
    channel = transport.open_session(window_size=_WINDOW, timeout=opening)
    try:
        channel.settimeout(opening)
        channel.exec_command(f"exec sh -c {shlex.quote(_ONCE.format(script=script))}")
        send(channel, stdin)
        channel.shutdown_write()
        for piece in _output(channel, deadline):
            listen(piece)
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        if (code := channel.recv_exit_status()) < 0:
            raise EOFError
        return code
    finally:
        channel.close()


def _output(channel: Channel, deadline: float) -> Iterator[bytes]:
    """What a script writes, until it has ended."""
    start, started = bytearray(), False
    while True:
        channel.settimeout(min(_POLL_INTERVAL, max(0.01, deadline - time.monotonic())))
        try:
            piece = channel.recv(_RECV_SIZE)
        except TimeoutError:
            if channel.exit_status_ready():
                return  # what it has left behind in the background holds the output open
            if time.monotonic() >= deadline:
                raise
            continue
        if not piece:
            return
        if not started:
            start += piece
            started, piece = skip_startup_output(start), bytes(start)
        if started and piece:
            yield piece


def skip_startup_output(answer: bytearray) -> bool:
    """Leave out what a login shell's start-up files have written; whether the greeting has come."""
    _, greeting, rest = answer.partition(b"tpux-shell\n")
    if greeting:
        answer[:] = rest
    return bool(greeting)


def send(channel: Channel, data: bytes) -> None:
    """Send all of it."""
    sent = 0
    while sent < len(data):
        # paramiko sends a packet of it, 32 KiB, and answers 0 when the channel is closed
        count = channel.send(data[sent : sent + _PACKET_SIZE])
        if count == 0:
            raise EOFError
        sent += count
