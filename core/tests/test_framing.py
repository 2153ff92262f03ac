"""Frames: calls with streams in both directions over one pair of byte streams."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpux import framing
from tpux.framing import Call, CallError, Frame, Kind, Link, LinkError, VersionError


class Pair:
    """Two ends of a socket, the second of which notes its calls."""

    def __init__(self) -> None:
        self.sockets = socket.socketpair()
        self.near, self.far = (Link(each.recv, each.sendall) for each in self.sockets)
        self.calls: list[tuple[Call, bytes]] = []
        self.lost = threading.Event()
        self.called = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self.near.run, daemon=True).start()
        threading.Thread(target=self.far.run, args=(self.accept,), daemon=True).start()

    def accept(self, call: Call, data: bytes) -> None:
        call.on_loss = self.lost.set
        self.calls.append((call, data))
        self.called.set()

    def call(self, data: bytes = b"") -> tuple[Call, Call]:
        """Begin a call, and return both ends of it."""
        self.called.clear()
        near = self.near.call(data)
        assert self.called.wait(60)
        return near, self.calls[-1][0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    greeting = threading.Thread(target=made.far.greet)
    greeting.start()
    made.near.greet()
    greeting.join()
    made.start()
    yield made
    for each in made.sockets:
        each.close()


def test_calls_stream_both_ways_at_once(pair: Pair) -> None:
    (one, far_one), (two, far_two) = pair.call(b"first"), pair.call(b"second")
    assert [data for _, data in pair.calls] == [b"first", b"second"]
    far_two.send(Kind.STDOUT, b"of the second")
    one.send(Kind.STDIN, b"in")
    one.send(Kind.STDIN)
    assert [far_one.receive(60), far_one.receive(60)] == [Frame(Kind.STDIN, b"in"), Frame(Kind.STDIN, b"")]
    far_one.send(Kind.STDERR, b"of the first")
    far_one.end(Kind.EXIT, b"3")
    far_two.end(Kind.ERROR, b"no")
    assert [one.receive(60), one.receive(60)] == [Frame(Kind.STDERR, b"of the first"), Frame(Kind.EXIT, b"3")]
    assert [two.receive(60), two.receive(60)] == [Frame(Kind.STDOUT, b"of the second"), Frame(Kind.ERROR, b"no")]
    with pytest.raises(CallError, match="has ended"):
        one.send(Kind.STDIN, b"more")
    with pytest.raises(CallError, match="has ended"):
        one.receive(60)
    assert (pair.near.calls, pair.far.calls) == (0, 0)


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_slow_receiver_stops_the_sender_of_its_call_only(pair: Pair, size: int) -> None:
    (near, far), sent, most = pair.call(), [0], framing.WINDOW // max(size, framing.LEAST)
    frames = most + most // 2

    def send() -> None:
        for _ in range(frames):
            far.send(Kind.STDOUT, bytes(size))
            sent[0] += 1
        far.end(Kind.EXIT)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    for _ in range(20):  # the other call works all the time
        near_two, far_two = pair.call()
        far_two.end(Kind.EXIT)
        assert near_two.receive(60).kind == Kind.EXIT
    assert sent[0] <= most + 1
    received = 0
    while (frame := near.receive(60)).kind == Kind.STDOUT:
        received += len(frame.payload)
    thread.join(60)
    assert (received, sent[0]) == (frames * size, frames)


def test_a_call_may_be_cancelled_while_it_is_sent_to(pair: Pair) -> None:
    near, far = pair.call()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            far.send(Kind.STDOUT, bytes(2 * framing.WINDOW))
        except CallError as error:
            failed.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    near.cancel()
    thread.join(60)
    assert [str(error) for error in failed] == ["the call was cancelled"]
    assert pair.lost.wait(60)
    far.end(Kind.EXIT)  # nobody waits for it, which is no error
    assert (pair.near.calls, pair.far.calls) == (0, 0)


def test_calls_end_with_the_streams(pair: Pair) -> None:
    near, far = pair.call()
    far.send(Kind.STDOUT, b"the last")
    pair.sockets[1].shutdown(socket.SHUT_RDWR)
    assert near.receive(60) == Frame(Kind.STDOUT, b"the last")
    with pytest.raises(LinkError, match="the other side has ended"):
        near.receive(60)
    with pytest.raises(LinkError):
        pair.near.call(b"")
    assert pair.lost.wait(60)
    with pytest.raises(LinkError):
        far.send(Kind.STDOUT, b"more")


def test_receiving_has_an_end(pair: Pair) -> None:
    near, _ = pair.call()
    with pytest.raises(TimeoutError):
        near.receive(0.01)


@pytest.mark.parametrize(
    ("said", "error"),
    [(b"tpux-frames 0\n", VersionError), (b"tpux-frames 11\n", VersionError), (b"Welcome!\n", LinkError)],
)
def test_another_version_is_refused_before_anything_is_sent(said: bytes, error: type[LinkError]) -> None:
    pair = Pair()
    pair.sockets[1].sendall(said)
    with pytest.raises(LinkError) as raised:
        pair.near.greet()
    assert type(raised.value) is error
    assert pair.sockets[1].recv(1000) == framing.HELLO % framing.VERSION


def test_what_is_no_frame_ends_the_link() -> None:
    pair = Pair()
    pair.sockets[1].sendall(b"Last login: yesterday, from somewhere else")
    assert pair.near.run() == "32 is not a valid Kind"
    endless = Pair()
    endless.sockets[1].sendall(b"\0\0\0\1\3\x7f\xff\xff\xff")
    assert endless.near.run() == "the other side sends a frame of 2147483647 bytes"


def test_its_text_alone_serves_over_the_pipes_of_a_process() -> None:
    served = """
import os, sys
def echo(call, data):
    call.end(Kind.EXIT, data[::-1])
link = Link(lambda size: os.read(0, size), sys.stdout.buffer.raw.write)
link.greet()
sys.exit(link.run(echo) != "the other side has ended")
"""
    text = Path(framing.__file__).read_text() + served
    command = [sys.executable, "-I", "-S", "-c", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        link = Link(process.stdout.read, process.stdin.write)
        link.greet()
        threading.Thread(target=link.run, daemon=True).start()
        assert link.call(b"abc").receive(60) == Frame(Kind.EXIT, b"cba")
        process.stdin.close()
        assert process.wait(60) == 0
