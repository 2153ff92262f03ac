"""A command on several workers whose output cannot be printed any more."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tpux import HostUnreachableError, Worker
from tpux.api import JobConnection
from tpux_shell.run import RemoteCommand


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
