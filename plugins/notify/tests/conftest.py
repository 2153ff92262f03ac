"""The fixture `tpux`, and real servers on loopback: SMTP (aiosmtpd) and HTTP, up, down, slow and refusing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from aiosmtpd.controller import Controller
from tests.conftest import tpux

__all__ = ["tpux"]


class HttpServer:
    """Keeps what it receives. `answers` are the status codes of the next requests, then 201; `delay` is before each."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str], object]] = []
        self.answers: list[int] = []
        self.delay = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                headers = {name.lower(): value for name, value in self.headers.items()}
                code = outer.answers.pop(0) if outer.answers else 201
                outer.received.append((self.command, self.path, headers, json.loads(body) if body else None))
                time.sleep(outer.delay)
                with suppress(OSError):
                    self.send_response(code)
                    self.end_headers()
                    self.wfile.write(b"{}" if code < 300 else b'{"message": "no"}')

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def bodies(self) -> list[dict[str, str]]:
        return [body for *_, body in self.received if isinstance(body, dict)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def http() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.close()


class Mailbox:
    """The handler of an SMTP server: it keeps each mail, or refuses it."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.refuse = 0

    async def handle_DATA(self, server: object, session: object, envelope) -> str:  # noqa: N802
        if self.refuse:
            self.refuse -= 1
            return "451 try again later"
        self.mails.append(envelope.content.decode())
        return "250 OK"


@pytest.fixture
def smtp() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, port
    controller.stop()
