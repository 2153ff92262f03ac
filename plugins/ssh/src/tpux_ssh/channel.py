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
from collections.abc import Iterable

from paramiko import Channel, SSHException, Transport

from tpux import Result

WINDOW = 2**31 - 1  # never full: the worker can always answer, also while it is still being written to
LARGE = 2**24
_PACKET = 2**15
_STALL = 60.0

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


class Shell:
    """A shell on a worker. Used by one thread at a time.

    Args:
        transport: the connection; the shell is one channel of it.
        timeout: seconds that opening it may take.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._channel = transport.open_session(window_size=WINDOW, timeout=timeout)
        self._channel.settimeout(timeout)
        self._channel.exec_command(f"exec sh -c {shlex.quote(_LOOP)}")
        self._greeted = False

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
        return self._answer(mark.encode(), time.monotonic() + timeout)

    def close(self) -> None:
        """End it; the scripts that it runs lose their output."""
        self._channel.close()

    def _answer(self, mark: bytes, deadline: float) -> Result:
        end = re.compile(rb"%s (\d+)\n\Z" % mark)
        answer = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            piece = self._channel.recv(LARGE)
            if not piece:
                raise EOFError
            answer += piece
            if not self._greeted:
                self._greeted = greet(answer)
            if self._greeted and (found := end.search(answer, max(0, len(answer) - len(mark) - 9))):
                return Result(int(found[1]), bytes(answer[: found.start()]))


def greet(answer: bytearray) -> bool:
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
        count = channel.send(data[sent : sent + _PACKET])
        if count == 0:
            raise EOFError
        sent += count


BROKEN = (EOFError, SSHException, OSError, socket.timeout)
"""What a broken connection raises, beside the TimeoutError of one that is silent."""
