"""What an SSH server says before it ends a login, in text that cannot control a terminal.

A server may state its reason before its version ("Not allowed at this time"), in a banner, in the message that
disconnects the client, or as the output of a program that it runs in place of a shell (`nologin`, a forced command).
"""

from __future__ import annotations

import re

from paramiko import Message, Transport
from paramiko.common import MSG_DISCONNECT, MSG_USERAUTH_BANNER
from paramiko.packet import Packetizer

from tpux_ssh.plain_text import printable
from tpux_ssh.routes import RouteStream

LONGEST = 200
"""Bytes that are shown."""
_KEPT = 20 * LONGEST
"""Bytes that are kept, since some are not printable."""
_VERSION = re.compile(rb"^SSH-\d", re.MULTILINE)


class ListeningPacketizer(Packetizer):
    """Keeps what the server says beside the protocol, until a script of tpux has begun.

    Attributes:
        disconnect: the reason in the message that disconnects the client.
        output: what a program has printed that the server runs in place of the script.
        banner: shown before the login.
        before_version: text before the server's version.
    """

    def __init__(self, stream: RouteStream) -> None:
        self.disconnect = self.output = self.banner = b""
        self.before_version = bytearray()
        # It is all of a socket that paramiko uses here.
        super().__init__(_ListeningStream(stream, self.before_version))  # type: ignore[arg-type]

    def read_message(self) -> tuple[int, Message]:
        """Return the next message; see `Packetizer.read_message`."""
        kind, message = super().read_message()
        if kind == MSG_DISCONNECT:
            message.get_int()
            self.disconnect = message.get_string()[:_KEPT]
            message.rewind()
        elif kind == MSG_USERAUTH_BANNER:
            self.banner = message.get_string()[:_KEPT]
            message.rewind()
        return kind, message

    def begin(self) -> None:
        """Forget what was said: a script has begun, so it was no reason to end the login."""
        self.output = self.banner = b""
        self.before_version.clear()


class _ListeningStream:
    """The stream of a connection; what arrives before the server's version is added to `heard`."""

    def __init__(self, stream: RouteStream, heard: bytearray) -> None:
        self._stream = stream
        self._heard = heard
        self._listening = True
        self.send, self.close = stream.send, stream.close

    def recv(self, size: int) -> bytes:
        """Return what has arrived."""
        data: bytes = self._stream.recv(size)
        if self._listening:
            self._heard += data
            version = _VERSION.search(self._heard)
            self._listening = version is None and len(self._heard) < _KEPT
            if version is not None:
                del self._heard[version.start() :]
        return data


def listening(transport: Transport | None) -> ListeningPacketizer | None:
    """Return what listens to the server of a connection."""
    packetizer = transport.packetizer if transport is not None else None
    return packetizer if isinstance(packetizer, ListeningPacketizer) else None


def it_said(transport: Transport | None) -> str:
    """Return what the server of a connection has said, as the end of an error message; "" if it has said nothing."""
    if (heard := listening(transport)) is None:
        return ""
    said = b"\n".join((heard.disconnect, heard.output, heard.before_version, heard.banner))
    text = printable(said.decode(errors="ignore")).encode()[:LONGEST].decode(errors="ignore").strip()
    return f"; it said: {text}" if text else ""
