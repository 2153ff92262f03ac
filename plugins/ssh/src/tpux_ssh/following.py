"""A script on a channel of its own, told as it comes: what one does once is over sooner than on the kept shell."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator

from paramiko import Channel, Transport

from tpux_ssh.channel import LARGE, WINDOW, greet, send

_LOOK = 0.5

# In brackets: the shell stays, and tells by which signal what is in them was ended; its own word for it is left out.
_ONCE = """
cd && echo tpux-shell && (
{script}
) 2>&1
exit $?"""


def follow(
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
    channel = transport.open_session(window_size=WINDOW, timeout=opening)
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
    start, greeted = bytearray(), False
    while True:
        channel.settimeout(min(_LOOK, max(0.01, deadline - time.monotonic())))
        try:
            piece = channel.recv(LARGE)
        except TimeoutError:
            if channel.exit_status_ready():
                return  # what it has left behind in the background holds the output open
            if time.monotonic() >= deadline:
                raise
            continue
        if not piece:
            return
        if not greeted:
            start += piece
            greeted, piece = greet(start), bytes(start)
        if greeted and piece:
            yield piece
