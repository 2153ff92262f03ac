"""The simulated worker and cloud keep the same contracts as the real ones: the same tests, on both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.simulation.cloud import Cloud
from tests.simulation.worker import Machine, SimHost
from tpux import ProvisionRequest, Released, Result, TpuSection, Waiting, Worker, sh
from tpux.model.host import OpenHost
from tpux.model.job import Command
from tpux.remote import job_runs, process
from tpux.remote.hung import hung_processes
from tpux.remote.process import RemoteProcess, Status
from tpux.remote.steps import run_once
from tpux_local.host import LocalHost
from tpux_testing import allocator_contract

KEY = "store-ann-000001-w0"
RUN = RemoteProcess(KEY, 1, "command")


@dataclass
class Place:
    """A worker, and how time passes there."""

    host: OpenHost
    sleep: Callable[[float], None]

    def start(self, script: str, run: RemoteProcess = RUN, offset: int = 0, **env: str) -> Status:
        command = Command(("sh", "-e", run.script), run.script, env)
        return process.start(self.host, run, script, command, offset=offset, wait=0.3)

    def until(self, holds: Callable[[Status], object], run: RemoteProcess = RUN) -> Status:
        deadline = time.monotonic() + 60
        while not holds(status := process.poll(self.host, run, 0)):
            assert time.monotonic() < deadline, status
            self.sleep(0.05)
        return status


def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    del tmp_path, monkeypatch
    now = [1_800_000_000.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    machine = Machine(lambda: now[0], advance, lambda _, __: None)
    return Place(SimHost(Worker(0), machine, lambda _, __, act: act()), advance)


def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("TPUX_MACHINE_DIR", str(tmp_path))
    home = tmp_path / "worker"
    home.mkdir()
    return Place(LocalHost(Worker(0, details={"home": str(home)}), {}), time.sleep)


@pytest.fixture(params=[simulated, real], ids=["simulated", "real"])
def place(request, tmp_path, monkeypatch) -> Place:
    return request.param(tmp_path, monkeypatch)


def test_what_was_never_started_is_absent(place):
    assert process.poll(place.host, RUN, 0) == Status("absent")
    assert process.probe(place.host, RUN, 0) == Status("absent")
    assert not process.has_ended(place.host, RUN)


def test_a_run_that_ends_at_once(place):
    status = place.start("echo one; exit 3", A="x y")
    assert (status.phase, status.code, status.output) == ("ended", 3, b"one\n")
    assert status.ended_at is not None
    polled = process.poll(place.host, RUN, 2)
    assert (polled.phase, polled.code, polled.output) == ("ended", 3, b"e\n")
    assert process.has_ended(place.host, RUN)


def test_the_program_has_its_variables(place):
    status = place.start("echo $TPUX_ATTEMPT $OTHER; [ $OTHER = a ] || exit 1", TPUX_ATTEMPT="7", OTHER="a")
    assert (status.code, status.output) == (0, b"7 a\n")


def test_a_run_is_started_once(place):
    assert place.start("echo one; sleep 1; echo two").phase == "running"
    again = place.start("echo other", offset=4)
    assert (again.phase, again.output) == ("running", b"")
    assert process.probe(place.host, RUN, 0).phase == "running"
    assert job_runs.unfinished(place.host, KEY) == [RUN]
    ended = place.until(lambda status: status.phase == "ended")
    assert (ended.code, ended.output) == (0, b"one\ntwo\n")
    assert place.start("echo other").output == b"one\ntwo\n"
    assert job_runs.unfinished(place.host, KEY) == []


def test_what_was_stopped_before_its_start_is_not_started(place):
    assert process.stop(place.host, RUN, signal="TERM", reason="not wanted") == 0
    status = place.start("echo one")
    assert (status.phase, status.reason, status.output) == ("lost", "it was stopped before it started", b"")
    assert process.poll(place.host, RUN, 0).phase == "absent"


@pytest.mark.parametrize("name", ["command", "comm*"])
def test_sigterm_ends_a_run(place, name):
    place.start("echo one; sleep 60; echo two")
    assert process.stop(place.host, RemoteProcess(KEY, 1, name), signal="0") > 0
    process.stop(place.host, RemoteProcess(KEY, 1, name), signal="TERM", reason="a test")
    ended = place.until(lambda status: status.phase == "ended")
    assert (ended.code, ended.output, ended.reason) == (143, b"one\n", "a test")
    assert process.stop(place.host, RemoteProcess(KEY, 1, name), signal="0") == 0


def test_a_run_that_does_not_listen_is_killed(place):
    place.start("trap '' TERM; echo one; sleep 60; echo two")
    place.until(lambda status: status.output)
    assert process.stop(place.host, RUN, signal="TERM", reason="a test") > 0
    assert hung_processes(place.host, RUN) == []
    process.stop(place.host, RUN, signal="KILL")
    ended = place.until(lambda status: status.phase == "ended")
    assert (ended.code, ended.output, ended.reason) == (137, b"one\n", "a test")


def test_a_reason_can_be_recorded_before_the_end(place):
    place.start("sleep 60")
    process.stop(place.host, RUN, signal="NONE", reason="first")
    assert process.poll(place.host, RUN, 0).phase == "running"
    process.stop(place.host, RUN, signal="KILL", reason="second")
    assert place.until(lambda status: status.phase == "ended").reason == "first"


def test_an_end_comes_before_a_stop(place):
    place.start("exit 0")
    process.stop(place.host, RUN, signal="TERM", reason="too late")
    assert (process.poll(place.host, RUN, 0).code, process.poll(place.host, RUN, 0).reason) == (0, "")


def test_earlier_attempts_are_removed_unless_they_run(place):
    second, third = RemoteProcess(KEY, 2, "command"), RemoteProcess(KEY, 3, "command")
    place.start("exit 0")
    place.start("sleep 60", second)
    prepared = job_runs.prepare(place.host, KEY, 3, "out/attempt-3")
    assert (prepared.running, prepared.problem) == (1, "")
    assert prepared.home.startswith("/")
    assert process.poll(place.host, RUN, 0).phase == "absent"
    assert process.poll(place.host, second, 0).phase == "running"
    assert process.stop(place.host, third, signal="0") == 0
    process.stop(place.host, second, signal="KILL")
    place.until(lambda status: status.phase == "ended", second)
    assert job_runs.prepare(place.host, KEY, 3).running == 0
    assert process.poll(place.host, second, 0).phase == "absent"


def test_the_first_worker_has_the_machine(place):
    assert job_runs.reserve_machine(place.host, KEY, 1) == 0
    place.host.worker = Worker(1, details=place.host.worker.details)
    assert job_runs.reserve_machine(place.host, KEY, 1) == 0
    assert job_runs.reserve_machine(place.host, KEY, 2) == 1


def test_files(place, tmp_path):
    place.host.put(b"content", "a/file")
    assert place.host.read(("a/file", 3), ("~/a/file", 0), ("other", 0)) == [b"tent", b"content", None]
    place.host.get("a/file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"


def test_checks_in_one_exchange(place):
    place.host.put(b"", "prepared")
    assert run_once(place.host, sh("test -e prepared"), 5.0) == Result()
    assert run_once(place.host, sh("echo b; test -e other"), 5.0) == Result(1, b"b\n")


def test_a_step_leaves_its_files(place):
    place.start("echo preparing; touch prepared")
    assert place.host.read(("prepared", 0)) == [b""]


# --- the cloud ------------------------------------------------------------------------------------


def test_the_simulated_cloud_keeps_the_contract_of_allocators():
    """The same contract as of `local`, and of `gcp` on the emulator (`plugins/*/tests/test_contract.py`)."""
    cloud = Cloud(time.time, lambda _, act: act(), lambda: Machine(time.time, time.sleep, lambda _, __: None), 1)
    cloud.create_takes = cloud.delete_takes = 0.2
    allocator_contract("sim", plugin=cloud, existing=cloud.live)


def test_a_release_waits_for_a_creation_that_was_cut_off(tmp_path):
    """As `gcp` does on the emulator: the test of this name in `plugins/gcp/tests/test_gcp_crash_recovery.py`."""
    now = [0.0]
    make = lambda: Machine(lambda: now[0], lambda _: None, lambda _, __: None)  # noqa: E731
    cloud = Cloud(lambda: now[0], lambda _, act: act(), make, 1)
    request = ProvisionRequest("one", TpuSection(), None, {"tpux-job": "000001"}, (), tmp_path, interrupted=True)
    cloud.cut_off(request)
    answer = cloud.release(request)
    assert isinstance(answer, Waiting), "it may still take effect"
    while not isinstance(answer, Released):
        now[0] += answer.poll_after
        request = replace(request, saved_state=answer.saved_state or request.saved_state)
        answer = cloud.release(request)
    assert (cloud.created, cloud.live()) == (1, [])
