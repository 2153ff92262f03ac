"""What must hold whatever fails: events are on the disk before anything follows, and nothing runs twice."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tpux import Released, TpuxError, Waiting, hookimpl
from tpux.lifecycle.advance import JobController
from tpux.model import events
from tpux.model.job import Command
from tpux.plugin.manager import Plugins
from tpux.remote import job_runs, process
from tpux.remote.connections import TransportFailedError
from tpux.remote.process import RemoteProcess
from tpux.store import files
from tpux.supervisor.errors import MAX_ERRORS, handle_error

from .mutants.table import MUTANTS
from .world import Cloud, World

ROOT = Path(__file__).parents[1]
FOREVER = "watch: {lost_after: 60s}\ncommand: {cmd: 'echo started; exec sleep 1000', grace_period: 0.2s}\n"


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_each_line_that_a_mutation_changes_is_there_once(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.line) == 1


# --- files ----------------------------------------------------------------------------------------


def test_an_event_is_on_the_disk_before_it_is_acted_on(world, monkeypatch):
    world.create(FOREVER)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    world.turn.write(events.Waiting(why="for a test"))
    assert "events.jsonl" in synced


def test_a_replaced_file_is_on_the_disk_before_the_old_one_is_gone(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    path.write_bytes(b"old")

    def fsync(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").is_file():  # not the directory
            seen.append((path.read_bytes(), os.pread(file, 9, 0)))

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_atomic(path, b"new")
    assert seen == [(b"old", b"new")]
    assert path.read_bytes() == b"new"


def test_an_event_that_cannot_be_written_leaves_nothing(world, monkeypatch):
    world.create(FOREVER)
    before = world.controller.record.events_path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            world.turn.write(events.Waiting(why="for a test"))
    assert world.controller.record.events_path.read_bytes() == before
    assert world.state.why != "for a test"


def test_an_event_counts_although_its_snapshot_cannot_be_written(world, monkeypatch):
    world.create(FOREVER)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", no_space)
        world.turn.write(events.Waiting(why="for a test"))
    assert world.store.record(world.job).refresh().why == "for a test"


def test_a_full_disk_fails_no_job(world):
    world.create(FOREVER)
    world.until(lambda: world.output(0))
    for _ in range(2 * MAX_ERRORS):
        handle_error(world.controller, OSError(errno.ENOSPC, "No space left on device"))
    assert world.state.state == "running"
    assert world.state.why.endswith("retrying")


# --- attempts -------------------------------------------------------------------------------------


def test_a_transport_that_fails_loses_no_worker(world, monkeypatch):
    world.create(FOREVER)
    world.until(lambda: world.state.run.running)

    def fail(*_: object) -> None:
        raise TransportFailedError("plugin cloud failed in connect")

    monkeypatch.setattr(JobController, "_connect", fail)
    world.restart_supervisor()
    for _ in range(300):
        world.steps(1)
        world.clock.ahead += 1
    assert world.state.state == "running"
    assert world.controller.phase.failure is None
    assert "plugin cloud failed in connect" in world.state.why


def test_nothing_of_an_earlier_attempt_runs_beside_the_next(world):
    cmd = "echo started; until [ -e go ]; do sleep 0.05; done; [ $TPUX_ATTEMPT = 2 ] && exec sleep 1000; exit 5"
    world.create(f"job: {{max_restarts: {{program: 1}}}}\ncommand: {{cmd: '{cmd}', grace_period: 0.2s}}\n")
    world.until(lambda: world.output(0))
    host = world.controller.workers.host(world.turn.machines.workers[0])
    key = process.worker_key(world.turn.job.key, 0)
    left = RemoteProcess(key, 1, "left")
    process.start(host, left, "exec sleep 1000", Command(("sh", left.script), left.script))
    assert left in job_runs.unfinished(host, key)
    for index in range(2):
        (world.cloud.root / "1" / str(index) / "go").touch()
    while "started" not in world.output(0, attempt=2):
        with suppress(TpuxError):  # an earlier attempt was still running: the supervisor takes the step again
            world.until(lambda: "started" in world.output(0, attempt=2))
    host = world.controller.workers.host(world.turn.machines.workers[0])
    assert [run.attempt for run in job_runs.unfinished(host, key)] == [2]
    world.request("stop")
    world.until("stopped")


def test_an_attempt_ends_when_its_last_process_has_ended(world):
    world.create(
        """command: {cmd: "(trap '' TERM; sleep 1000) & echo $!", grace_period: 1s, allow_left: [bash, sleep]}"""
    )
    world.until("succeeded")
    for worker in range(2):
        pid = int(world.output(worker))
        path = Path(f"/proc/{pid}/stat")
        assert not path.exists() or ") Z" in path.read_text()


def test_a_confirmed_start_is_never_repeated(world):
    world.create("job: {rule: pass}\n" + FOREVER)
    world.until(lambda: world.state.run.running and world.output(0))
    world.restart_supervisor()
    shutil.rmtree(world.cloud.root / "1/0/.tpux/runs")
    world.until(lambda: world.state.ended or 0 in world.state.endings)
    assert world.state.endings[0].code is None
    assert world.output(0) == "started\n"
    world.request("stop")
    world.until(lambda: world.state.ended)


# --- release --------------------------------------------------------------------------------------


class SlowCloud(Cloud):
    """A cloud that needs a while to release the machines."""

    gone = False

    @hookimpl
    def release(self):
        return Released() if self.gone else Waiting("deleting", poll_after=0.05)


def test_a_release_is_confirmed_before_the_job_is_deleted(world):
    world.cloud = SlowCloud(world.path / "cloud")
    world.plugins = Plugins()
    world.plugins.add("cloud", world.cloud)
    world.create(FOREVER)
    world.until(lambda: world.output(0))
    world.request("delete")
    world.until(lambda: world.state.why == "deleting")
    world.steps(5)
    assert world.controller.record.directory.exists()
    assert world.state.requested
    world.cloud.gone = True
    for _ in range(10):
        if not world.controller.record.directory.exists():
            break
        world.steps(1)
    assert not world.controller.record.directory.exists()
