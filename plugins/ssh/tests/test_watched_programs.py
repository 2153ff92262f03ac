"""A program that is silent is watched by a script on its worker, and polled when that reports a change."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from network_namespace import Namespace
from ssh_servers import Server
from ssh_support import MakeServer

from tpux.lifecycle import run
from tpux.lifecycle.run import Running
from tpux.remote import output, process
from tpux_testing.sandbox import Sandbox, SandboxJob

PROGRAM = """
echo begin; [ ! -e chatty ] || while [ ! -e stop ]; do echo chat; sleep 0.2; done &
until [ -e go ]; do sleep 0.1; done; echo more
until [ -e stop ]; do sleep 0.1; done; wait; exit $(cat stop)
"""


TRUNCATES = """
echo first; until [ -e go ]; do sleep 0.1; done; echo other >/dev/stdout
until [ -e stop ]; do sleep 0.1; done
"""


def start(sandbox: Sandbox, *servers: Server, program: str = PROGRAM) -> SandboxJob:
    addresses = [f"{server.address}:{server.port}" for server in servers]
    return sandbox.start(
        {
            "tpu": {"allocation_mode": "hosts"},
            "hosts": addresses,
            "ssh": {"connect_timeout": 60},
            "watch": {"lost_after": "1h"},
            "command": {"cmd": program},
        }
    )


def is_watched(job: SandboxJob, worker: int) -> Callable[[object], bool]:
    def check(_: object) -> bool:
        phase = job.controller.phase
        poll = phase.poller.polls.get(worker) if isinstance(phase, Running) and hasattr(phase, "poller") else None
        return bool(poll and poll.followed and poll.followed.is_silent(job.controller.workers.clock.monotonic()))

    return check


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each poll of a program adds its worker."""
    made: list[int] = []
    poll = process.poll

    def counted(host, run, offset):
        made.append(host.worker.index)
        return poll(host, run, offset)

    monkeypatch.setattr(process, "poll", counted)
    return made


def test_a_silent_program_is_polled_when_something_has_changed(make_server: MakeServer, polls: list[int]) -> None:
    with Sandbox() as sandbox:
        server = make_server()
        job = start(sandbox, server)
        job.until(is_watched(job, 0))
        polls.clear()
        steps = iter(range(60))
        job.until(lambda _: next(steps, None) is None)
        assert polls == []
        (server.home / "go").touch()
        job.until(lambda _: job.output() == "begin\nmore\n")
        assert polls, "the change was found by a probe, which is made once a minute"
        job.until(is_watched(job, 0))
        (server.home / "stop").write_text("3")
        state = job.until(lambda state: state.ended)
        assert (state.state, state.failure.code) == ("failed", 3)


def test_output_that_is_as_long_as_what_it_replaces_is_found(make_server: MakeServer, polls: list[int]) -> None:
    with Sandbox() as sandbox:
        server = make_server()
        job = start(sandbox, server, program=TRUNCATES)
        job.until(is_watched(job, 0))
        polls.clear()
        (server.home / "go").touch()
        job.until(lambda _: "other" in job.output())
        assert polls, "the change was found by a probe"
        (server.home / "stop").touch()
        assert job.until(lambda state: state.ended).state == "succeeded"


def test_a_worker_that_writes_does_not_cause_polls_of_a_silent_one(make_server: MakeServer, polls: list[int]) -> None:
    with Sandbox() as sandbox:
        servers = make_server(), make_server()
        (servers[0].home / "chatty").touch()
        job = start(sandbox, *servers)
        job.until(is_watched(job, 1))
        polls.clear()
        before = job.output(0)
        job.until(lambda _: len(job.output(0)) > len(before) + 20)
        assert 0 in polls
        assert 1 not in polls
        for server in servers:
            (server.home / "go").touch()
            (server.home / "stop").write_text("0")
        assert job.until(lambda state: state.ended).state == "succeeded"
        assert job.output(1) == "begin\nmore\n"


def test_a_worker_that_allows_no_second_channel_is_polled(make_server: MakeServer, polls: list[int]) -> None:
    with Sandbox() as sandbox:
        server = make_server(extra="MaxSessions 1")
        job = start(sandbox, server)
        job.until(lambda _: len(polls) > 30)
        assert job.controller.workers.unreachable == {}
        (server.home / "go").touch()
        (server.home / "stop").write_text("0")
        assert job.until(lambda state: state.ended).state == "succeeded"
        assert job.output() == "begin\nmore\n"


def test_a_watched_worker_that_has_written_is_polled_while_somebody_reads(
    make_server: MakeServer, polls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script looks at the files only now and then."""
    monkeypatch.setattr(run, "RECENT", 1e9)
    with Sandbox() as sandbox:
        job = start(sandbox, make_server())
        job.until(is_watched(job, 0))
        polls.clear()
        reading = job.controller.record.reader_lock
        assert reading.acquire()
        job.until(lambda _: len(polls) > 20)
        monkeypatch.setattr(run, "RECENT", 0.0)
        job.until(is_watched(job, 0))
        polls.clear()
        steps = iter(range(60))
        job.until(lambda _: next(steps, None) is None)
        assert polls == []
        reading.release()


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_runner_that_is_gone_is_noticed_before_the_next_probe(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, reconnects: bool
) -> None:
    """As in a reboot of the worker: the files are as before, and a new connection can be opened at once."""
    monkeypatch.setattr(output, "PROBE_EVERY", 1e9)
    with Sandbox() as sandbox:
        server = make_server()
        job = start(sandbox, server, program="echo $PPID; sleep 1000")
        job.until(is_watched(job, 0))
        for pid in [int(job.output()), *(server.sessions() if reconnects else [])]:
            os.kill(pid, signal.SIGKILL)
        failure = job.until(lambda state: state.ended).failure
        assert "its runner was killed" in failure.evidence


@pytest.mark.system
def test_a_watched_worker_whose_packets_are_dropped_is_unreachable(
    namespace: Namespace, make_server: MakeServer, polls: list[int]
) -> None:
    with Sandbox() as sandbox:
        server = make_server(namespace.address, namespace=namespace.name)
        job = start(sandbox, server)
        job.until(is_watched(job, 0))
        namespace.cut()
        polls.clear()
        (server.home / "go").touch()
        job.until(lambda _: 0 in job.controller.workers.unreachable)
        assert polls, "it was found by a probe"
        assert job.state.state == "running"
        namespace.restore()
        (server.home / "stop").write_text("0")
        state = job.until(lambda state: state.ended)
        assert (state.state, state.attempt, job.output()) == ("succeeded", 1, "begin\nmore\n")
