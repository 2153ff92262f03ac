"""A command on several workers whose output cannot be printed any more."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from tpux import HostUnreachableError, Worker
from tpux.api import JobConnection
from tpux_shell.exec import _Printer
from tpux_shell.run import LONGEST_LINE, RemoteCommand

CHUNK = 64 * 1024


def run(chunks: Iterable[bytes], listen: Callable[[int, bytes], None]) -> None:
    """Run a command on one worker that prints this."""

    class Host:
        def __init__(self, worker):
            self.worker = worker

        def follow(self, script, receive, *, timeout):
            for chunk in chunks:
                receive(chunk)
            return 0

        def close(self):
            pass

    job = SimpleNamespace(key="j", attempt=1)
    connection = SimpleNamespace(
        job=job,
        open=Host,
        script=lambda text, beside: JobConnection.script(connection, text, beside=beside),
    )
    RemoteCommand(connection, [Worker(0)], "true", 60.0, beside=False).run(listen)


def test_a_line_of_any_length_is_passed_on_while_it_comes():
    """At no time is more of it kept than `LONGEST_LINE`, so that its length needs no memory."""
    sent = passed_on = 0
    most, ends = 0, []

    def chunks():
        nonlocal sent, most
        for piece in itertools.chain([b"first\n"], itertools.repeat(b"x" * CHUNK, 40 * LONGEST_LINE // CHUNK)):
            sent += len(piece)
            yield piece
            most = max(most, sent - passed_on)

    def listen(_, lines):
        nonlocal passed_on
        passed_on += len(lines)
        ends.append(lines.endswith(b"\n"))

    run(chunks(), listen)
    assert passed_on == sent + 1  # the newline at the end
    assert most <= LONGEST_LINE
    assert ends[0]
    assert ends[-1]
    assert not any(ends[1:-1])


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb", b"c\nd"], [b"a\n", b"bc\n", b"d\n"]),
        ([b"a", b"\n", b""], [b"a\n"]),
        ([b"x" * LONGEST_LINE, b"x", b"\n"], [b"x" * (LONGEST_LINE + 1), b"\n"]),
        ([b"x" * LONGEST_LINE, b"x"], [b"x" * (LONGEST_LINE + 1), b"\n"]),
        ([b"x" * LONGEST_LINE, b"\ny"], [b"x" * LONGEST_LINE + b"\n", b"y\n"]),
        ([], []),
    ],
)
def test_lines_are_complete(chunks, expected):
    passed_on = []
    run(chunks, lambda _, lines: passed_on.append(lines))
    assert passed_on == expected


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, b"a\nb\n"), (1, b"c\n")], "[0] a\n[0] b\n[1] c\n"),
        ([(0, b"a"), (0, b"b"), (0, b"\n"), (0, b"c\n")], "[0] ab\n[0] c\n"),
        ([(0, b"a"), (1, b"c\n"), (0, b"b\n")], "[0] a\n[1] c\n[0] b\n"),
        ([(0, b"a"), (1, b"c"), (0, b"\n"), (1, b"\nd\n")], "[0] a\n[1] c\n[1] d\n"),
        ([(0, b"a\n"), (0, b"\n"), (0, b"\nb\n")], "[0] a\n[0] \n[0] \n[0] b\n"),
    ],
)
def test_a_prefix_precedes_each_line_and_what_follows_another_workers(capfdbinary, pieces, expected):
    print_ = _Printer()
    for index, lines in pieces:
        print_(index, lines)
    assert capfdbinary.readouterr().out.decode() == expected


def test_a_closed_stdout_ends_the_command_and_blames_no_worker():
    ended = threading.Event()

    class Host:
        """Worker 0 prints, worker 1 is silent until it is ended. As over ssh, an OSError means a lost connection."""

        def __init__(self, worker):
            self.worker = worker

        def follow(self, script, listen, *, timeout):
            if self.worker.index == 0:
                try:
                    listen(b"x\n")
                except OSError as error:
                    raise HostUnreachableError("connection lost") from error
            assert ended.wait(60)
            return 137

        def close(self):
            pass

    def closed(index, lines):
        raise BrokenPipeError

    workers = [Worker(0), Worker(1)]
    job = SimpleNamespace(key="j", attempt=1)
    connection = SimpleNamespace(
        job=job,
        open=Host,
        each=lambda *_: ended.set(),
        script=lambda text, beside: JobConnection.script(connection, text, beside=beside),
    )
    with pytest.raises(BrokenPipeError):
        RemoteCommand(connection, workers, "true", 60.0, beside=False).run(closed)
    assert ended.is_set()


def test_an_error_of_one_workers_connection_leaves_the_others():
    class Host:
        def follow(self, script, listen, *, timeout):
            listen(b"x\n")
            return 0

        def close(self):
            pass

    def open_host(worker):
        if worker.index == 1:
            raise OSError(24, "Too many open files")
        return Host()

    class Script:
        def follow(self, host, listen, *, timeout):
            return host.follow(self, listen, timeout=timeout)

        def terminate(self, host):
            raise AssertionError("nothing is to be ended")

    connection = SimpleNamespace(open=open_host, script=lambda script, *, beside: Script())
    done = RemoteCommand(connection, [Worker(0), Worker(1)], "true", 60, beside=False).run()
    assert (done[0].code, bytes(done[0].output)) == (0, b"x\n")
    assert (done[1].code, "Too many open files" in done[1].problem) == (255, True)
