"""`tpux run CONFIG --on JOB`: one job holds the machines at any moment, wherever a supervisor dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tpux_local
from tpux import Allocation, Denied, Failure, MachineStatus, Ready, Released, TpuSection, Waiting, Worker, hookimpl
from tpux.clock import SystemClock
from tpux.errors import UsageError
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.create import create_job
from tpux.lifecycle.transfer import CONFIRM_POLL
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.store import Store, events, files, requests
from tpux.store.record import Record

CONFIG = "tpu: {allocation_mode: pool, accelerator: v4-8}\ncommand: {cmd: 'echo on $HOME; exit CODE'}\n"


class KilledError(BaseException):
    """Simulates kill -9: nothing in tpux catches it."""


class PoolSection(TpuSection):
    """Machines with labels."""

    transport = "local"
    transferable = True


class Pool:
    """An allocator whose machines are directories, and whose API is a file with the labels of each."""

    connect = staticmethod(tpux_local.connect)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.deleted_by: list[str] = []
        self.created = 0
        self.die: Callable[[str], None] = lambda _: None

    @property
    def machines(self) -> dict[str, dict[str, str]]:
        path = self.directory / "machines.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def change(self, machines: dict[str, dict[str, str]], what: str) -> None:
        self.die(f"before {what}")
        (self.directory / "machines.json").write_text(json.dumps(machines))
        self.die(f"after {what}")

    @hookimpl
    def tpu_section(self):
        return PoolSection

    @hookimpl
    def provision(self, request):
        name, machines = request.name, self.machines
        if name not in machines:
            (self.directory / name).mkdir(exist_ok=True)
            self.created += 1
            self.change({**machines, name: dict(request.labels)}, "creation")
            return Waiting("created", 0, {"name": name})
        if machines[name] in request.previous_owners:
            self.change({**machines, name: dict(request.labels)}, "change of labels")
            return Waiting("labels changed", 0)
        if machines[name] != request.labels:
            return Denied(Failure("config", evidence=f"{name} belongs to job {machines[name]['tpux-job']}"))
        return Ready(Allocation(name, "local", (Worker(0, details={"home": str(self.directory / name)}),)))

    @hookimpl
    def inspect(self, request):
        mine = (request.labels, *request.previous_owners)
        return MachineStatus("ready" if self.machines.get(request.name) in mine else "gone", poll_after=0.1)

    @hookimpl
    def release(self, request):
        machines = self.machines
        if machines.get(request.name) in (request.labels, *request.previous_owners):
            del machines[request.name]
            self.deleted_by.append(request.labels["tpux-job"])
            self.change(machines, "deletion")
        return Released()


class World:
    """Two jobs, and supervisors that live until they are killed."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
        self.path = tmp_path
        (tmp_path / "pool").mkdir()
        self.pool = Pool(tmp_path / "pool")
        self.plugins = Plugins()
        self.plugins.add("pool", self.pool)
        self.store = Store()
        self.records: list[Record] = []
        self.died: list[str] = []
        self.dying = True
        self._monkeypatch = monkeypatch
        self.create(CONFIG.replace("CODE", "1"))
        assert self.live()
        assert self.records[0].refresh().state == "failed"

    def create(self, text: str, on: Record | None = None) -> Record:
        config = self.path / "job.yaml"
        config.write_text(text)
        record = create_job(self.store, config, [], warn=print, plugins=self.plugins, on=on)
        self.records.append(record)
        return record

    def take_over(self) -> Record:
        return self.create(CONFIG.replace("CODE", "0"), on=self.records[0])

    def live(self, seconds: float = 60.0) -> bool:
        """Run a supervisor until all jobs have ended and only wait; return False if it was killed before.

        The newest job has its turn first, so that it can be deleted before an older one looks at it.
        """
        controllers = []
        for record in map(self.store.record, self.store.ids()):
            assert record.acquire()
            controllers.append(JobController(self.store, record, self.plugins, SystemClock()))
        try:
            deadline = time.monotonic() + seconds
            idle = 0
            while idle < 3:
                delays = [(c, c.advance()) for c in reversed(controllers) if c.record.directory.is_dir()]
                steps = [d for c, d in delays if d is not None and not (c.record.state.ended and d >= CONFIRM_POLL)]
                idle = 0 if steps else idle + 1
                assert time.monotonic() < deadline, [each.record.state for each in controllers]
                time.sleep(min([0.05, *steps]))
        except KilledError:
            return False
        except PluginError as error:  # the guard around plugins lets nothing through
            if not isinstance(error.__cause__, KilledError):
                raise
            return False
        finally:
            for controller in controllers:
                controller.record.lock.release()
        return True

    def live_until(self, what: str) -> None:
        """Run supervisors that are killed everywhere, until one has died at this point."""
        self.dying = True
        while what not in self.died:
            assert not self.live()
        self.dying = False

    def owners(self) -> list[str]:
        """Return the jobs that have to release machines, as the disk says it."""
        states = {job: self.store.record(job).refresh() for job in self.store.ids()}
        given = {state.transfer_from for state in states.values()}
        return [job for job, state in states.items() if state.requested and not (job in given and state.transfer_to)]

    def die_everywhere(self) -> None:
        """Die once before and once after each event, request and change of a machine that was not made before."""

        def die(what: str) -> None:
            if self.dying and what not in self.died:
                self.died.append(what)
                raise KilledError(what)

        write, replace = events.append, files.write_atomic

        def append(path, event):
            name = f"{event.type} {getattr(event, 'to', '')} of {path.parent.name}"
            die(f"before {name}")
            length = write(path, event)
            die(f"after {name}")
            return length

        def write_atomic(path, content, **options):
            counts = path.parent.name == "requests"
            if counts:
                die(f"before request {path.name}")
            replace(path, content, **options)
            if counts:
                die(f"after request {path.name}")

        self.pool.die = die
        self._monkeypatch.setattr(events, "append", append)
        self._monkeypatch.setattr(files, "write_atomic", write_atomic)


def test_one_job_holds_the_machines_wherever_a_supervisor_dies(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    [name] = world.pool.machines
    taker = world.take_over()
    assert world.owners() == ["000001"]
    world.die_everywhere()
    while not world.live():
        assert len(world.died) < 100, world.died
        assert len(world.owners()) == (0 if "after released  of 000002" in world.died else 1)
        assert len(world.pool.machines) == 1 or world.pool.deleted_by
    for step in (
        "request-accepted 000002 of 000001",
        "taken-over  of 000002",
        "change of labels",
        "transferred 000002",
    ):
        assert [f"{when} {step}" in " ".join(world.died) for when in ("before", "after")] == [True, True], step
    giver = world.records[0].refresh()
    assert taker.refresh().state == "succeeded"
    assert f"on {tmp_path}/pool/{name}" in taker.output_log(1, 0).read_text(), "the same machine"
    assert world.pool.machines == {}
    assert {*world.pool.deleted_by} == {"000002"}
    assert (giver.state, giver.requested, giver.done) == ("failed", False, True)

    world.dying = False
    requests.write(world.records[0], "rerun")  # which requests machines of its own, under another name
    assert world.live()
    assert world.pool.created == 2
    assert name not in world.pool.machines
    requests.write(world.records[0], "transfer", to="000002")  # which has them already, and took effect late
    assert world.live()
    giver = world.records[0].refresh()
    assert (giver.state, giver.requested, giver.transfer_to) == ("failed", True, "")


def test_a_giver_that_is_to_start_again_meanwhile_waits_and_gets_other_machines(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    taker = world.take_over()
    world.die_everywhere()
    world.live_until("after request-accepted 000002 of 000001")
    requests.write(world.records[0], "rerun")
    assert world.live()
    assert taker.refresh().state == "succeeded"
    assert world.records[0].refresh().attempt == 2
    logs = [record.output_log(attempt, 0).read_text() for record, attempt in zip(world.records, (1, 1), strict=True)]
    assert logs[0] == logs[1] != world.records[0].output_log(2, 0).read_text()
    assert world.pool.created == 2


@pytest.mark.parametrize("moment", ["before request 000001.json", "after request-accepted 000002 of 000001"])
def test_a_taker_that_is_stopped_before_it_holds_the_machines(tmp_path, monkeypatch, moment):
    world = World(tmp_path, monkeypatch)
    taker = world.take_over()
    world.die_everywhere()
    world.live_until(moment)
    requests.write(taker, "stop")
    assert world.live()
    assert world.owners() == ["000001"]
    giver = world.records[0].refresh()
    assert (taker.refresh().state, giver.transfer_to, giver.release_at is None) == ("stopped", "", False)
    requests.write(taker, "resume")
    assert world.live()
    assert taker.refresh().state == "succeeded"
    assert world.pool.created == 2


def test_clean_counts_a_job_as_replaced_only_once_its_machines_are_taken_over(tmp_path, monkeypatch):
    def cleaned() -> str:
        command = [sys.executable, "-m", "tpux", "clean", "--rerun", "--dry-run"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    world = World(tmp_path, monkeypatch)
    world.take_over()
    assert "nothing to clean" in cleaned(), "it would release what the new job waits for"
    assert world.live()
    assert "would remove with all logs:\n  job 1 (" in cleaned()


def test_a_taker_that_is_stopped_before_it_has_changed_the_labels(tmp_path, monkeypatch):
    """It holds the machines: the other job can be deleted or started again meanwhile."""
    world = World(tmp_path, monkeypatch)
    taker = world.take_over()
    world.die_everywhere()
    world.live_until("after taken-over  of 000002")
    requests.write(taker, "stop", keep=True)
    assert world.live()
    giver = world.records[0].refresh()
    assert (taker.refresh().state, giver.transfer_to, world.owners()) == ("stopped", "", ["000002"])
    requests.write(world.records[0], "delete")
    assert world.live()
    assert (world.store.ids(), world.pool.deleted_by) == (["000002"], [])
    requests.write(taker, "resume")
    assert world.live()
    assert (taker.refresh().state, world.pool.created) == ("succeeded", 1)


@pytest.mark.system
def test_a_taker_that_is_deleted_at_any_moment(tmp_path, monkeypatch):
    """The machines are either released with it, or the other job has them as before: never both, never neither."""
    outcomes = set()
    for deaths in range(0, 60, 2):  # each is followed by one that leaves the same: before the next step
        directory = tmp_path / str(deaths)
        directory.mkdir()
        with monkeypatch.context() as patch:
            world = World(directory, patch)
            taker = world.take_over()
            world.die_everywhere()
            done = False
            while len(world.died) < deaths and not done:
                done = world.live()
        with monkeypatch.context() as patch:
            patch.setenv("TPUX_HOME", str(directory / "home"))
            world.pool.die = lambda _: None
            if taker.directory.is_dir():
                requests.write(taker, "delete")
            assert world.live()
        giver = world.records[0].refresh()
        assert not taker.directory.is_dir()
        assert giver.transfer_to == ""
        assert [giver.requested] * giver.requested == [True] * len(world.pool.machines), deaths
        assert giver.release_at is not None or not giver.requested, "it is released when it was to be"
        outcomes.add("released" if not giver.requested else "kept")
        if done:
            break
    assert outcomes == {"released", "kept"}
    assert done


def test_a_taker_is_removed_only_after_the_giver_knows_that_it_had_the_machines(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    taker = world.take_over()
    world.die_everywhere()
    world.live_until("after taken-over  of 000002")
    requests.write(taker, "delete")
    assert taker.acquire()
    controller = JobController(world.store, taker, world.plugins, SystemClock())
    for _ in range(20):
        controller.advance()
    assert world.pool.machines == {}
    assert taker.directory.is_dir()
    taker.lock.release()
    assert world.live()
    assert not taker.directory.is_dir()
    assert not world.records[0].refresh().requested


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("tpu: {allocation_mode: pool, accelerator: v4-16}\ncommand: {cmd: 'true'}\n", "tpu.accelerator"),
        ("tpu: {allocation_mode: local, accelerator: v4-8}\ncommand: {cmd: 'true'}\n", "tpu.allocation_mode"),
    ],
)
def test_a_config_with_other_machines_is_refused(tmp_path, monkeypatch, config, problem):
    world = World(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=problem):
        world.create(config, on=world.records[0])
    assert world.store.ids() == ["000001"]


def test_a_job_that_needs_its_machines_does_not_give_them(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    giver = world.records[0]
    requests.write(giver, "rerun")
    with pytest.raises(UsageError, match="job 1 is about to start again"):
        world.take_over()
    for path in giver.directory.glob("requests/*.json"):
        path.unlink()
    taker = world.take_over()
    requests.write(giver, "rerun")  # before the taker's own request
    assert world.live()
    assert giver.refresh().attempt == 2
    state = taker.refresh()
    assert (state.state, state.requested) == ("failed", False)
    assert "no machines to take over: job 1 is" in state.failure.evidence
    assert world.owners() == ["000001"]
    second, third = world.take_over(), world.take_over()
    requests.write(giver, "transfer", to=second.id)
    requests.write(giver, "stop", release=True)  # takes effect after the transfer, and finds nothing
    assert world.live()
    assert [record.refresh().state for record in (second, third)] == ["succeeded", "failed"]
    assert "000003" not in third.refresh().failure.evidence
    assert world.pool.deleted_by == ["000003"]
    for why in ("job 1 holds no machines", "job 3 holds no machines"):
        with pytest.raises(UsageError, match=why):
            world.create(CONFIG, on=world.store.record(f"00000{why[4]}"))
