"""What a pod's shell answers, in pieces as they may come: on a fake exec."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpux import Worker
from tpux_gke import host
from tpux_gke.scripts import GREETING


class Exec:
    """A fake exec, which answers each request with the next pieces; <> is the request's marker."""

    unsent = 0
    ended = ""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [GREETING, *pieces]
        self._marker = b""

    def send(self, data: bytes) -> None:
        """Learn the marker."""
        self._marker = data.split()[2]

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
