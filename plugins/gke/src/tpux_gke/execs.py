"""An exec: the standard streams of a process in a pod, over a WebSocket (v5.channel.k8s.io, or v4).

It uses the WebSocket library without its threads: a job may have hundreds of pods, and each call waits by itself.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode, urlsplit

from tpux import TpuxError, plain_reason
from tpux_gke.client import Client
from tpux_gke.objects import Object, parts, text

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.http11 import Response

OPENING = 30.0
"""Seconds until the API server, and the node behind it, have opened the connection."""
CONTAINER = "main"
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_PIECE = 64 * 1024
_MOST = 64
"""Pieces that are read before others get their turn."""
_WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Exec:
    """One process in a pod. Used by one thread at a time.

    Args:
        client: the cluster's API.
        pod: the pod's name.
        argv: the command.

    Attributes:
        ended: why nothing more comes; "" before that.

    Raises:
        EOFError: it cannot be opened; why.
    """

    def __init__(self, client: Client, pod: str, argv: Sequence[str]) -> None:
        self.ended = ""
        self._errors = b""
        self._message = bytearray()
        self._out = bytearray()
        self._socket, self._protocol = _opened(client, pod, argv)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    @property
    def unsent(self) -> int:
        """How many bytes have not been sent yet."""
        return len(self._out)

    def send(self, data: bytes | memoryview) -> None:
        """Send data to the process's standard input: as much as fits now, the rest when `wait` finds that it can be."""
        from websockets.exceptions import WebSocketException

        try:
            for start in range(0, len(data), _PIECE):
                self._protocol.send_binary(b"\0" + bytes(data[start : start + _PIECE]))
        except WebSocketException as error:
            self._end(str(error))
            return
        self._queue()
        self._flush()

    def wait(self, timeout: float) -> bool:
        """Wait until something has come, or could be sent; False if neither has happened in time."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._socket, events)
        if not (ready := self._selector.select(max(0.0, timeout))):
            return False
        if ready[0][1] & selectors.EVENT_WRITE:
            self._flush()
        return True

    def take(self) -> bytes:
        """Return the output that has arrived; never waits."""
        found = bytearray()
        for _ in range(_MOST):
            if self.ended:
                break
            try:
                piece = self._socket.recv(_PIECE)
            except _WAITS:
                break
            except OSError as error:
                self._end(plain_reason(error) or "the connection was closed")
                break
            found += self._received(piece)
        else:
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():  # no selector sees these
                found += self._received(self._socket.recv(_PIECE))
        return bytes(found)

    def close(self) -> None:
        """Close the connection: what the process has started in a session of its own goes on."""
        self._end("the connection was closed")
        self._selector.close()
        from websockets.exceptions import WebSocketException

        try:
            with contextlib.suppress(OSError, WebSocketException):  # it may be closed already
                self._protocol.send_close(1000)
                self._queue()
                self._flush()
        finally:
            self._socket.close()

    def _received(self, piece: bytes) -> bytes:
        from websockets.frames import Opcode

        if piece:
            self._protocol.receive_data(piece)
        else:
            self._protocol.receive_eof()
        self._queue()
        self._flush()
        output = bytearray()
        for event in self._protocol.events_received():
            opcode = getattr(event, "opcode", None)
            if opcode in {Opcode.BINARY, Opcode.TEXT, Opcode.CONT}:
                self._message += getattr(event, "data", b"")
                if getattr(event, "fin", True):
                    output += self._of_channel(bytes(self._message))
                    self._message.clear()
        if not piece or self._protocol.close_rcvd is not None:
            self._end("the API server has closed the connection")
        return bytes(output)

    def _of_channel(self, message: bytes) -> bytes:
        """Return the part of a message that is output."""
        if not message:
            return b""
        channel, data = message[0], message[1:]
        if channel == _STDOUT:
            return data
        if channel == _STDERR:
            self._errors = (self._errors + data)[-400:]
        elif channel == _STATUS:
            said = self._errors.decode(errors="replace").strip()
            self._end(": ".join(filter(None, (_words(data), said))))
        return b""

    def _queue(self) -> None:
        for piece in self._protocol.data_to_send():
            self._out += piece

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(memoryview(self._out)[: 4 * _PIECE])
            except _WAITS:
                return
            except OSError as error:
                self._out = (
                    bytearray()
                )  # the error's traceback may still hold the view: clear() would raise BufferError
                self._end(plain_reason(error) or "the connection was closed")
                return
            del self._out[:sent]

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason


def _words(data: bytes) -> str:
    """Return what the last Status of an exec says."""
    try:
        status = cast("Object", json.loads(data))
        code = next((text(one, "message") for one in parts(status, "details", "causes")), "0")
        return text(status, "message") or f"the shell in the pod has ended with exit code {code}"
    except (ValueError, AttributeError):
        return data.decode(errors="replace")[:400]


def _opened(client: Client, pod: str, argv: Sequence[str]) -> tuple[socket.socket, ClientProtocol]:
    """Open the connection; once more with a new login if that was refused."""
    silent = f"the Kubernetes API at {client.cluster.server} does not answer"
    for attempt in (1, 2):
        try:
            connection, protocol, answer = _connect(client, pod, argv)
        except TpuxError as error:
            raise EOFError(plain_reason(error)) from error
        except OSError as error:
            raise EOFError(f"{silent}: {plain_reason(error) or type(error).__name__}") from error
        if protocol.handshake_exc is None:
            return connection, protocol
        connection.close()
        if answer is None or answer.status_code != 401 or attempt == 2:
            break
        client.forget()
    if answer is None:
        raise EOFError(f"{silent}: {protocol.handshake_exc}")
    try:
        said = text(cast("Object", json.loads(answer.body or b"{}")), "message")
    except (ValueError, AttributeError):
        said = ""
    raise EOFError(f"exec: HTTP {answer.status_code}: {said or answer.reason_phrase}")


def _connect(client: Client, pod: str, argv: Sequence[str]) -> tuple[socket.socket, ClientProtocol, Response | None]:
    from websockets.client import ClientProtocol
    from websockets.http11 import Response
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri

    address = urlsplit(client.cluster.server)
    query = [("container", CONTAINER), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in argv]
    scheme, path = ("wss" if address.scheme == "https" else "ws"), client.namespaced("api/v1", "pods", pod, "exec")
    uri = f"{scheme}://{address.netloc}{address.path}/{path}?{urlencode(query)}"
    protocol = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol(name) for name in _PROTOCOLS], max_size=None)
    request = protocol.connect()
    if token := client.login.token():
        request.headers["Authorization"] = f"Bearer {token}"
    deadline = time.monotonic() + OPENING
    host, port = address.hostname or "", address.port or (443 if scheme == "wss" else 80)
    connection = socket.create_connection((host, port), OPENING)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (tls := client.login.tls()) is not None:
            connection = tls.wrap_socket(connection, server_hostname=client.cluster.tls_name or host)
        protocol.send_request(request)
        connection.sendall(b"".join(protocol.data_to_send()))
        while protocol.handshake_exc is None and protocol.state.name == "CONNECTING":
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            if piece := connection.recv(1):  # not more: what follows is read by `take`
                protocol.receive_data(piece)
            else:
                protocol.receive_eof()
        answer = next((event for event in protocol.events_received() if isinstance(event, Response)), None)
    except BaseException:
        connection.close()
        raise
    return connection, protocol, answer
