"""What a pod's shell answers, in pieces as they may come: on a fake exec."""

from __future__ import annotations

import os
import socket
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import cast

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from tpux import Worker
from tpux_gke import execs, host
from tpux_gke.client import Client
from tpux_worker_tools.relay import GREETING


class Exec:
    """A fake exec, which answers each request with the next pieces; <> is the request's marker."""

    unsent = 0
    ended = ""

    def __init__(self, pieces: list[bytes]) -> None:
        self.sent = b""
        self._pieces = [GREETING, *pieces]
        self._marker = b""

    def send(self, data: bytes) -> None:
        """Learn the marker."""
        self.sent += data
        self._marker = self._marker or data.split()[2]

    def wait(self, _: float) -> bool:
        """Say that something has come, or that nothing more does."""
        return bool(self._pieces)

    def take(self) -> bytes:
        """Return the next piece."""
        return (
            self._pieces.pop(0).replace(b"<", self._marker[:9]).replace(b">", self._marker[9:]) if self._marker else b""
        )

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    "pieces",
    [
        [b"now\n<> 137\n"],
        [b"now\n<> 137\nlate\n"],
        [b"now\n<> 137\n9\n"],
        [b"now\n<> 137\nlate"],
        [b"now\n<", b"> 137\nlate\n"],
        [b"now\n<> 1", b"37", b"\nlate\n"],
    ],
)
def test_output_after_the_end(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process in the background writes after the script's end is neither its output nor its exit code."""
    monkeypatch.setattr(host, "Exec", lambda *_: Exec(pieces))
    monkeypatch.setattr(host, "client_of", lambda _: None)
    one = host.GkeHost(Worker(0, details={"pod": "pod"}), SimpleNamespace(resolved={}))  # type: ignore[arg-type]
    result = one.run("script")
    assert (result.code, result.output) == (137, b"now\n")


class Growing(PosixPath):
    """A file that another process writes to once its size was asked."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size of before."""
        found = super().stat(follow_symlinks=follow_symlinks)
        self.write_bytes(b"content14 0\ntouch executed")
        return found


def test_what_a_file_has_grown_by_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell would take it for a request."""
    connection = Exec([b"<> 0\n"])
    monkeypatch.setattr(host, "Exec", lambda *_: connection)
    monkeypatch.setattr(host, "client_of", lambda _: None)
    source = Growing(tmp_path / "log")
    source.write_bytes(b"content")
    one = host.GkeHost(Worker(0, details={"pod": "pod"}), SimpleNamespace(resolved={}))  # type: ignore[arg-type]
    one.put(source, "copy")
    assert connection.sent.endswith(b"content")


class Reset(socket.socket):
    """A connection that is reset while something is sent, in a frame of Python, as a connection with TLS is."""

    def send(self, data: object, flags: int = 0) -> int:
        """Fail, with a traceback that holds the data."""
        raise ConnectionResetError(104, f"reset while {len(memoryview(data))} bytes were sent")  # type: ignore[arg-type]


@pytest.mark.parametrize("closes", [False, True])
def test_connection_that_is_reset_while_it_is_sent_to(monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    """It has ended, with nothing left to send, and is closed without an error."""
    own, peer = socket.socketpair()
    connection, protocol = Reset(fileno=own.detach()), ClientProtocol(parse_uri("ws://pod"), state=State.OPEN)
    monkeypatch.setattr(execs, "_opened", lambda *_: (connection, protocol))
    one = execs.Exec(cast("Client", None), "pod", [])
    if not closes:
        one.send(b"content")
        assert "reset" in one.ended
        assert one.unsent == 0
    one.close()
    assert connection.fileno() == -1
    peer.close()
