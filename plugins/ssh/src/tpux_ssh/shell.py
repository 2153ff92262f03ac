"""A channel of an SSH connection, with the shell on it that runs scripts: many one after the other, or one alone.

A new channel per script costs two round trips and a login shell. On a shell that is kept open a script costs one round
trip and is ten times cheaper (docs/benchmarks.md).
"""

from __future__ import annotations

import shlex

from paramiko import ChannelException, SSHException, Transport

from tpux import plain_reason
from tpux_ssh.server_text import listening
from tpux_worker_tools.relay import GREETING, LOOP

FOLLOW_WINDOW = 2**22
"""Bytes that a script is ahead of who follows it: memory here. Only of one whose input the server takes at once."""
SHORT_INPUT = 2**17
WINDOW = 2**31 - 1  # never full, so the worker can reply while it is still receiving input
_RECV_SIZE = 2**24
_PACKET_SIZE = 2**15
_SEND_TIMEOUT = 60.0


class RefusedError(EOFError):
    """The server opens no further channel: its words."""


class ShellChannel:
    """The `Connection` to a shell on a channel of its own.

    Args:
        transport: the connection.
        window: bytes that the worker may send before they are taken.
        timeout: seconds to wait until the channel is open.

    Attributes:
        ended: why nothing more comes; "" before that.
        unsent: bytes that wait to be sent: none, since `send` waits.

    Raises:
        RefusedError: the server opens no further channel.
        EOFError: the connection was lost.
    """

    unsent = 0

    def __init__(self, transport: Transport, window: int, timeout: float) -> None:
        self.ended = ""
        self._arrived = b""
        self._beginning: bytearray | None = bytearray()
        try:
            self._channel = transport.open_session(window_size=window, timeout=timeout)
            self._channel.settimeout(timeout)
            self._channel.exec_command(f"exec sh -c {shlex.quote(LOOP)}")
        except ChannelException as error:
            raise RefusedError(error.text) from error
        except TimeoutError:
            raise
        except (EOFError, SSHException, OSError) as error:
            raise EOFError(_lost(error)) from error

    def send(self, data: bytes) -> None:
        """Send all of the data.

        Raises:
            TimeoutError: it could not be sent for a minute.
        """
        self._channel.settimeout(_SEND_TIMEOUT)
        sent = 0
        try:
            while sent < len(data) and not self.ended:
                # paramiko sends at most one packet (32 KiB) per call, and returns 0 when the channel is closed.
                if not (count := self._channel.send(data[sent : sent + _PACKET_SIZE])):
                    self.ended = _lost()
                sent += count
        except TimeoutError:
            raise
        except (EOFError, SSHException, OSError) as error:
            self.ended = _lost(error)

    def wait(self, timeout: float) -> bool:
        """Wait until something has arrived, or the channel has ended."""
        return self._receive(max(0.0, timeout))

    def take(self) -> bytes:
        """Return what has arrived."""
        if not self._arrived:
            self._receive(0.0)
        arrived, self._arrived = self._arrived, b""
        return arrived

    def close(self) -> None:
        """Close the channel: the server closes the shell's standard output."""
        self._channel.close()
        self.ended = self.ended or _lost()

    def _receive(self, timeout: float) -> bool:
        self._channel.settimeout(timeout)
        try:
            piece = self._channel.recv(_RECV_SIZE)
        except TimeoutError:
            self._heard(b"")
            return False
        if not piece:
            self.ended = self.ended or _lost()
        self._arrived += piece
        self._heard(piece)
        return True

    def _heard(self, piece: bytes) -> None:
        """Keep, for the message of an error, what a program in place of the shell prints, until the shell has begun."""
        if self._beginning is None or (heard := listening(self._channel.get_transport())) is None:
            return
        self._beginning += piece
        if self._channel.recv_stderr_ready():
            self._beginning += self._channel.recv_stderr(_RECV_SIZE)
        heard.output = bytes(self._beginning)
        if GREETING in self._beginning:
            heard.begin()
            self._beginning = None


def _lost(error: Exception | None = None) -> str:
    # paramiko's words for the same, if the connection ended before the request was sent.
    if error is None or str(error) in {"", "Socket is closed"}:
        return "connection lost: closed by the server"
    return f"connection lost: {plain_reason(error)}"
