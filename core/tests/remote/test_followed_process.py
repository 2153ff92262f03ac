"""A run that a script on its worker follows: what the bytes of the script, and their absence, are taken for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux import HostUnreachableError, TpuxError, Worker
from tpux.plugin.connect import GuardedHost
from tpux.plugin.manager import Plugins
from tpux.remote.connections import TransportFailedError
from tpux.remote.followed_process import LONGEST_SILENCE, FollowedProcess
from tpux.remote.output import FOLLOW_AFTER, Poller, PollState
from tpux.remote.process import RemoteProcess, Status

RUN = RemoteProcess("job-w0", 1, "command")


class Pieces:
    """A stream of given pieces; None is its end."""

    def __init__(self, *pieces: bytes | Exception | None) -> None:
        self.pieces = list(pieces)

    def take(self) -> bytes | None:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        self.pieces = [None] * 100


class Host:
    """A connection whose `stream` is given; it has nothing else."""

    def __init__(self, stream: object = None) -> None:
        self.worker = Worker(0)
        self.stream = stream


def test_a_change_is_news_until_the_files_are_read() -> None:
    run = FollowedProcess(Pieces(b"+", b"", b".", b"+"), now=0.0)
    run.begin_poll(0.0)
    assert run.is_silent(1.0)
    assert run.is_silent(2.0)
    assert not run.is_silent(3.0)
    assert not run.is_silent(4.0)
    run.begin_poll(5.0)
    assert run.is_silent(6.0)


@given(st.lists(st.sampled_from([b"", b".", b"+", b".+.", b"..", None]), max_size=30), st.data())
def test_no_change_is_lost(pieces: list[bytes | None], data: st.DataObject) -> None:
    """After a change was sent, the run is not silent until a poll has begun, wherever the steps fall."""
    stream = Pieces(*pieces)
    run = FollowedProcess(stream, now=0.0)
    unread = True  # what the program wrote before the first poll
    while stream.pieces:
        piece = stream.pieces[0]
        if data.draw(st.booleans()):
            run.begin_poll(0.0)
            unread = False
        else:
            unread |= piece is not None and b"+" in piece
            assert run.is_silent(0.0) <= (not unread)
        if piece is None:
            assert not run.is_silent(0.0)
            return


@pytest.mark.parametrize("end", [None, ConnectionResetError("reset"), TpuxError("a bug")])
def test_what_tells_nothing_any_more_is_not_silent(end: Exception | None) -> None:
    run = FollowedProcess(Pieces(b"", end), now=0.0)
    run.begin_poll(0.0)
    assert not run.is_silent(1.0)
    assert run.ended


def test_a_script_that_is_not_heard_may_be_cut_off() -> None:
    run = FollowedProcess(Pieces(b".", b""), now=0.0)
    run.begin_poll(10.0)
    assert run.is_silent(10.0 + LONGEST_SILENCE)
    assert not run.is_silent(10.5 + LONGEST_SILENCE)


@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), TransportFailedError("a bug"), TpuxError("no further channel")]
)
def test_a_run_that_cannot_be_watched_is_polled(error: Exception) -> None:
    def refuse(script: str) -> Pieces:
        raise error

    assert FollowedProcess.start(Host(refuse), RUN, 0.5, 0.0) is None  # type: ignore[arg-type]
    assert FollowedProcess.start(Host(), RUN, 0.5, 0.0) is None  # type: ignore[arg-type]


def test_a_lost_connection_is_reported() -> None:
    def lose(script: str) -> Pieces:
        raise HostUnreachableError("no answer")

    with pytest.raises(HostUnreachableError):
        FollowedProcess.start(Host(lose), RUN, 0.5, 0.0)  # type: ignore[arg-type]


def test_a_host_without_streams_has_none_when_it_is_wrapped() -> None:
    once = GuardedHost(Host(), Worker(0), Plugins(), "wire")  # type: ignore[arg-type]
    assert once.stream is None
    assert GuardedHost(once, Worker(0), Plugins(), "tunnel").stream is None


def test_a_stream_that_loses_the_connection_is_not_tried_again_at_the_next_poll() -> None:
    """Else the worker would count as lost in the end, although it answers each poll."""
    tries: list[str] = []

    def lose(script: str) -> Pieces:
        tries.append(script)
        raise HostUnreachableError("the server closed the connection")

    workers = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 100.0))
    poller = Poller(workers, 1.0, 0.0, print)  # type: ignore[arg-type]
    polling = PollState(probe_at=200.0, silent=FOLLOW_AFTER)
    with pytest.raises(HostUnreachableError):
        poller._follow(polling, Host(lose), RUN, Status("running"))  # type: ignore[arg-type]
    poller._follow(polling, Host(lose), RUN, Status("running"))  # type: ignore[arg-type]
    assert len(tries) == 1


def test_a_script_that_watches_is_not_started_again_after_a_minute() -> None:
    """Else each minute of silence would leave one more script on the worker, and one more channel."""
    streams: list[Pieces] = []

    def start(script: str) -> Pieces:
        streams.append(Pieces(*[b"."] * 1000))
        return streams[-1]

    seconds = iter(range(0, 1000, 5))
    workers = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: next(seconds)))
    poller = Poller(workers, 1.0, 0.0, print)  # type: ignore[arg-type]
    polling = PollState(probe_at=60.0, silent=FOLLOW_AFTER)
    for now in range(0, 600, 5):
        if polling.followed:
            polling.followed.begin_poll(float(now))
        poller._follow(polling, Host(start), RUN, Status("running"))  # type: ignore[arg-type]
    assert len(streams) == 1
