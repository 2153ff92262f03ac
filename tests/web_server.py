"""A running `tpux web`, and requests to it with any headers."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import Tpux


class OverUnixSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code, self.headers, self.body = response.status, response.headers, response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Web:
    """A server: `tpux web` with some options.

    Attributes:
        url: the address that it has printed, without the token.
    """

    def __init__(self, tpux: Tpux, *options: str) -> None:
        self.tpux = tpux
        self.process = tpux.popen("web", *options, stderr=subprocess.STDOUT)
        assert self.process.stdout
        self.printed = self.process.stdout.readline().decode()
        found = re.fullmatch(r"(http://\S+)/#token=(\S{43})\n", self.printed)
        assert found, self.printed + self.process.stdout.read().decode()
        self.url, self.token = found.groups()
        self.directory = next(tpux.home.glob("web-*"))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    def connection(self) -> http.client.HTTPConnection:
        on_socket = self.url.endswith(":8080") and self.socket.exists()
        return (
            OverUnixSocket(self.socket) if on_socket else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        )

    def __call__(
        self, path: str, method: str = "GET", *, token: str | None = "", body: object = None, **headers: str | None
    ) -> Answer:
        """Send a request; a header that is None is left out, and so is the token."""
        given = {"Host": f"127.0.0.1:{self.port}"}
        if token is not None:
            given["Authorization"] = f"Bearer {token or self.token}"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connection()
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        data = b"" if body is None else json.dumps(body).encode()
        if method not in ("GET", "HEAD"):
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    @contextmanager
    def stream(self, *topics: str) -> Iterator[Iterator[Any]]:
        """Yield the messages of a stream."""
        connection = self.connection()
        query = "&".join(f"topic={topic}" for topic in topics)
        headers = {"Host": f"localhost:{self.port}", "Authorization": f"Bearer {self.token}"}
        connection.request("GET", f"/api/stream?{query}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield (json.loads(line) for line in iter(response.readline, b"") if line.strip())
        response.close()
        connection.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the server; return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout
        self.said = self.process.stdout.read().decode()
        self.process.stdout.close()
        return code


@contextmanager
def serving(tpux: Tpux, *options: str) -> Iterator[Web]:
    web = Web(tpux, *options)
    try:
        yield web
    finally:
        if web.process.poll() is None:
            web.end()
