"""Workers that do not answer: for how long that is observed, what the cloud is asked, and what the job concludes."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.world import World
from tpux import Failure, HostUnreachableError, TpuxError, Waiting, hookimpl, sh
from tpux.lifecycle import stop
from tpux.lifecycle.loss import VERDICT_POLL
from tpux.model.events import AttemptEnded
from tpux.remote import process

HOUR = 3600.0
FOREVER = "command: {cmd: 'sleep 1000', grace_period: 0}\n"
SHORT = "watch: {lost_after: 60s}\njob: {rule: pass}\n"


class Network:
    """Which workers of a world do not answer, also after a restart of its supervisor."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down: set[int] = set()
        self.logins: list[int] = []
        connect = type(world.controller)._connect

        def connect_unless_down(context, worker, interrupted):
            self.logins.append(worker.index)
            if worker.index in self.down:
                raise HostUnreachableError("no answer", where=f"worker {worker.index}")
            return connect(context, worker, interrupted)

        monkeypatch.setattr(type(world.controller), "_connect", connect_unless_down)
        self._world = world

    def cut(self, *workers: int) -> None:
        """Close the connections to these workers, and refuse new ones."""
        self.down.update(workers)
        for index in workers:
            self._world.controller.workers.close(index)


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@pytest.fixture
def running(world, monkeypatch):
    """A job that runs until it is stopped; its workers count as lost after a minute."""

    def start(text: str = "") -> Network:
        world.create(SHORT + FOREVER + text)
        network = Network(world, monkeypatch)
        world.restart_supervisor()
        world.until(lambda: world.state.run.running)
        return network

    return start


def watch(world: World, seconds: float, until=None) -> None:
    """Take steps for that long, one a second."""
    for _ in range(int(seconds)):
        if world.state.ended or (until and until()):
            return
        world.controller.advance()
        answered = time.monotonic() + 0.05
        while world.controller.workers.threads.busy() and time.monotonic() < answered:
            time.sleep(0.001)  # the calls of workers take real time, which is not to count as many seconds
        world.clock.ahead += 1


def test_a_frozen_supervisor_loses_no_worker(world, running):
    network = running()
    network.cut(1)
    watch(world, 10)
    world.clock.ahead += 1800  # stopped, with the clock running on
    world.steps()
    assert world.state.state == "running"
    assert world.controller.phase.failure is None
    network.down.clear()
    watch(world, 40, until=lambda: world.state.why == "attempt 1")
    assert world.state.why == "attempt 1"


def test_a_worker_is_lost_after_observed_time_across_restarts(world, running):
    network = running()
    network.cut(1)
    for _ in range(2):
        watch(world, 25)
        world.restart_supervisor()
        world.clock.ahead += HOUR
    assert world.state.state == "running"
    watch(world, 55)  # less than a minute: what was counted before the restarts is part of it
    assert world.state.state == "failed"
    assert (world.state.failure.kind, world.state.failure.worker) == ("host-lost", 1)


def test_the_cloud_is_asked_and_one_more_login_is_tried_before_a_worker_is_lost(world, running):
    world.cloud.poll_after = HOUR
    network = running()
    network.cut(1)
    watch(world, 50)
    asked = world.count("inspect")
    world.cloud.on_inspect = network.down.clear
    watch(world, 60, until=lambda: world.count("inspect") > asked)
    assert network.down == set()
    watch(world, 30)
    assert world.state.state == "running"
    assert world.state.why == "attempt 1"


@pytest.mark.parametrize("state", ["preempted", "maintenance", "gone"])
def test_machines_on_which_the_program_runs_are_not_lost_because_the_cloud_says_so_for_a_while(world, running, state):
    running()
    world.cloud.state = state
    watch(world, 40)
    assert (
        world.state.why == f"attempt 1: it is {state}, but the program runs on worker 0 and 1 more; checking for 45 s"
    )
    world.restart_supervisor()
    world.cloud.state = "ready"
    watch(world, 5)
    assert world.state.why == "attempt 1"
    world.cloud.state = state
    watch(world, 40)
    assert (world.state.state, world.state.attempt, world.count("release")) == ("running", 1, 0)


# A program on two slices that saves its work on SIGTERM, once it can.
SLICES = """
tpu: {{node_count: 2, pricing: spot}}
watch: {{verdict_grace: 1s}}
log: {{finished: saved}}
command:
  finished_by: [log]
  grace_period: {grace}
  cmd: |
    exec 2>/dev/null
    trap told=1 TERM
    echo begin
    until [ $TPUX_ATTEMPT = 2 ] || [ "$told" -a -e {path}/save ]; do sleep 0.05; done
    echo saved
"""


@pytest.fixture
def two_slices(world, monkeypatch):
    """A job on two slices of two workers each, whose program runs; and their network."""

    def start(grace: str) -> Network:
        world.cloud.workers, world.cloud.slices = 4, 2
        world.create(SLICES.format(path=world.path, grace=grace))
        network = Network(world, monkeypatch)
        world.restart_supervisor()
        world.until(lambda: world.state.run.running and all("begin" in world.output(index) for index in range(4)))
        return network

    return start


@pytest.mark.parametrize("reported", [(1,), ()], ids=["the slice", "all"])
def test_the_program_on_the_other_slices_can_save_its_work_when_a_slice_is_lost(world, two_slices, reported):
    """That it looks finished then does not count."""
    network = two_slices("1000s")
    network.cut(2, 3)
    world.cloud.state, world.cloud.lost = "preempted", reported
    world.until(lambda: world.state.run.failure)
    assert (world.state.state, world.state.run.failure.kind) == ("running", "preempted")
    world.restart_supervisor()
    world.steps()
    (world.path / "save").touch()
    world.until(lambda: world.state.state != "running")
    assert world.state.failure.kind == "preempted"
    assert [world.output(index) for index in range(4)] == ["begin\nsaved\n"] * 2 + ["begin\n"] * 2
    network.down.clear()
    world.cloud.lost, world.cloud.up = (), False
    assert (world.until("succeeded").attempt, world.count("release")) == (2, 1)


def test_a_stop_ends_the_program_on_the_other_slices_when_a_slice_is_lost(world, two_slices):
    network = two_slices("1s")
    network.cut(2, 3)
    world.cloud.state, world.cloud.lost = "preempted", (1,)
    world.request("stop")
    world.until("stopped")
    assert {index: ending.code for index, ending in world.state.endings.items()} == {0: 137, 1: 137}


def test_slices_whose_program_has_ended_do_not_hide_that_another_one_is_lost(world, monkeypatch):
    world.cloud.workers, world.cloud.slices = 2, 2
    cmd = "[ $TPUX_SLICE$TPUX_ATTEMPT = 11 ] && sleep 1000; exit 0"
    world.create(f"tpu: {{node_count: 2, pricing: spot}}\ncommand: {{cmd: '{cmd}'}}")
    network = Network(world, monkeypatch)
    world.restart_supervisor()
    world.until(lambda: 0 in world.state.endings)
    network.cut(1)
    world.cloud.state, world.cloud.lost = "preempted", (1,)
    world.until(lambda: world.state.state != "running")
    assert (world.state.failure.kind, world.state.failure.slices) == ("preempted", (1,))
    network.down.clear()
    world.cloud.lost, world.cloud.up = (), False
    assert world.until("succeeded").attempt == 2


@pytest.mark.parametrize("answers", [True, False])
def test_machines_are_lost_once_the_cloud_has_said_so_for_long_or_no_worker_answers(world, running, answers):
    network = running()
    world.cloud.state = "preempted"
    watch(world, 5)
    assert world.state.state == "running"
    if not answers:
        network.cut(0, 1)
    watch(world, 55 if answers else 5)
    assert (world.state.failure.kind, world.state.failure.evidence) == ("preempted", "it is preempted")


def test_machines_that_cannot_come_back_are_lost_at_once(world, running):
    running()
    world.cloud.state, world.cloud.confirmed = "preempted", True
    watch(world, 5)
    assert (world.state.failure.kind, world.state.failure.evidence) == ("preempted", "it is preempted")


@pytest.mark.parametrize(
    ("case", "kind"), [("a false state", "program"), ("it lasts", "preempted"), ("no answer", "preempted")]
)
def test_a_state_that_comes_when_all_programs_have_ended_counts_once_it_is_confirmed(world, monkeypatch, case, kind):
    world.create(f"{SHORT}command: {{cmd: 'until [ -e {world.path}/end ]; do sleep 0.05; done; exit 3'}}")
    network = Network(world, monkeypatch)
    world.restart_supervisor()
    world.until(lambda: world.state.run.running)
    world.cloud.poll_after = 1000  # asked next when the programs have ended
    watch(world, 3)
    world.cloud.state = "preempted"
    (world.path / "end").touch()
    world.until(lambda: len(world.state.endings) == 2)
    if case == "no answer":
        network.cut(0, 1)
    watch(world, 10 if case == "no answer" else 30)
    if case != "no answer":
        assert world.state.state == "running", world.state.failure
        assert world.state.why.endswith("it is preempted, but worker 0 and 1 more answer; checking for 45 s")
        world.restart_supervisor()
    if case == "a false state":
        world.cloud.state = "ready"
    watch(world, 60)
    assert (world.state.state, world.state.failure.kind, world.count("release")) == ("failed", kind, 0)


def test_no_worker_is_lost_while_the_cloud_does_not_answer(world, running):
    network = running()
    network.cut(1)
    world.cloud.state = "unknown"
    watch(world, 300)
    assert world.state.state == "running"
    world.cloud.state = "ready"
    watch(world, 30)
    assert world.state.failure.kind == "host-lost"


def test_no_worker_is_lost_during_setup_while_the_cloud_does_not_answer(world, monkeypatch):
    world.create(SHORT + FOREVER)
    network = Network(world, monkeypatch)
    network.down = {0, 1}
    world.restart_supervisor()
    world.until("setting-up")
    world.cloud.state = "error"
    watch(world, 300)
    assert world.state.state == "setting-up"
    assert "worker 0" in world.state.why
    assert "unreachable for" in world.state.why
    assert "no answer" in world.state.why
    world.cloud.state = "ready"
    watch(world, 200)
    assert world.state.failure.kind == "unreachable"


def test_a_worker_that_was_never_reachable_has_its_own_kind(world, monkeypatch):
    world.create("watch: {lost_after: 60s}\ntpu: {pricing: spot}\n" + FOREVER)
    network = Network(world, monkeypatch)
    network.down = {1}
    world.restart_supervisor()
    world.until("setting-up")
    watch(world, 300, until=lambda: world.state.state == "recovering")
    failure = world.state.failure
    assert (failure.kind, failure.worker) == ("unreachable", 1)
    assert "no answer" in failure.evidence
    assert "firewall" in failure.hint
    assert "127.0.0.1" in failure.hint
    for _ in range(1000):
        if world.state.ended:
            break
        world.controller.advance()
        world.clock.ahead += 1
    assert world.state.failure.kind == "unreachable"
    assert world.cloud.generation == 2  # bought once more, not again and again


def test_a_worker_that_was_reached_before_a_restart_of_the_supervisor_is_lost(world, monkeypatch):
    world.create("job: {max_restarts: {program: 1}}\nwatch: {lost_after: 60s}\ncommand: {cmd: 'exit 1'}")
    network = Network(world, monkeypatch)
    world.restart_supervisor()
    world.until("recovering")
    world.restart_supervisor()
    network.down = {0, 1}
    world.until("setting-up")
    watch(world, 300)
    assert world.state.failure.kind == "host-lost"


def test_silence_counts_only_while_it_is_observed(world, running):
    running("")
    world.request("stop")
    world.until("stopped")
    world.create("job: {stalled_after: 1m, rule: pass}\n" + FOREVER)
    world.until(lambda: world.state.run.running)
    world.clock.ahead += HOUR
    world.steps()
    assert world.state.state == "running"
    watch(world, 20)
    world.restart_supervisor()
    world.clock.ahead += HOUR
    world.steps(2)
    assert world.state.state == "running"
    watch(world, 200)
    assert world.state.failure.kind == "stalled"


def test_the_grace_of_stragglers_counts_only_while_it_is_observed(world):
    world.create("command: {cmd: '[ $TPUX_WORKER = 0 ] && sleep 1000; exit 5', grace_period: 0}")
    world.until(lambda: 1 in world.state.endings)
    world.steps(1)
    world.clock.ahead += HOUR
    world.steps(1)
    assert not world.turn.termination.begun
    watch(world, 60)
    assert (world.state.failure.kind, world.state.failure.worker) == ("program", 1)


def test_a_failure_that_is_seen_late_is_the_root_cause(world, monkeypatch):
    """Its worker did not answer while the job ended the program of the others."""
    go = world.path / "go"
    failing = f"until [ -e {go}$TPUX_WORKER ]; do sleep 0.02; done; exit $((3 + TPUX_WORKER))"
    world.create(f"command: {{cmd: '{failing}', grace_period: 0}}")
    network = Network(world, monkeypatch)
    world.restart_supervisor()
    world.until(lambda: world.state.run.running)
    network.cut(0)
    go.with_name("go0").touch()
    while not list(world.path.glob("cloud/1/0/.tpux/runs/*/1/command/exit")):
        time.sleep(0.02)
    go.with_name("go1").touch()
    world.until(lambda: 1 in world.state.endings)
    watch(world, 60, until=lambda: world.turn.termination.begun)
    network.down.clear()
    world.until("failed")
    assert (world.state.failure.worker, world.state.failure.code, world.state.failure.others) == (0, 3, 1)


# --- an error on a worker -------------------------------------------------------------------------


@pytest.fixture
def no_fork(monkeypatch):
    """Workers on which no process can be started."""
    broken: set[int] = set()
    for name in ("poll", "probe", "stop"):
        call = getattr(process, name)

        def wrapped(host, *args, call=call, **options):
            if host.worker.index in broken:
                raise TpuxError("a tpux script failed on the worker: fork: Resource temporarily unavailable")
            return call(host, *args, **options)

        monkeypatch.setattr(process, name, wrapped)
    return broken


def test_an_error_on_a_worker_ends_no_attempt(world, running, no_fork):
    running()
    no_fork.add(1)
    watch(world, 50)
    assert world.state.state == "running"
    assert "worker 1 fails for 40 s (a tpux script failed on the worker: fork: " in world.state.why
    no_fork.clear()
    watch(world, 30, until=lambda: world.state.why == "attempt 1")
    assert (world.state.why, world.state.attempt) == ("attempt 1", 1)


def test_a_worker_that_fails_for_lost_after_counts_as_unreachable(world, running, no_fork):
    running()
    no_fork.add(1)
    watch(world, 200)
    assert (world.state.state, world.state.failure.kind, world.state.failure.worker) == ("failed", "host-lost", 1)
    assert "fork" in world.state.failure.evidence


# --- real time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["suspended", "set_forward"])
def test_kept_machines_are_released_in_real_time(world, change):
    world.create("tpu: {keep_on_failure: 1h}\ncommand: {cmd: 'exit 1'}")
    world.until("failed")
    world.steps(1)
    setattr(world.clock, change, 2 * HOUR)
    world.steps(1)
    assert world.cloud.up is (change == "set_forward")


def test_a_clock_that_is_set_back_delays_no_release(world):
    world.create("tpu: {keep_on_failure: 1h}\ncommand: {cmd: 'exit 1'}")
    world.until("failed")
    world.steps(1)
    world.clock.set_forward = -HOUR
    assert world.controller.advance() <= HOUR
    world.restart_supervisor()
    assert world.controller.advance() <= HOUR
    world.clock.ahead += HOUR
    world.steps(2)
    assert not world.cloud.up


def test_a_clock_that_is_set_back_delays_no_restart(world):
    world.create("job: {max_restarts: {program: 1}}\ncommand: {cmd: 'exit 1'}")
    world.until("recovering")
    delays = [world.controller.advance()]
    world.clock.set_forward = -HOUR
    delays.append(world.controller.advance())
    world.restart_supervisor()
    world.until(lambda: not delays.append(world.controller.advance()) and delays[-1] > 1)
    assert max(delays) <= 10
    world.until(lambda: world.state.attempt == 2)


@pytest.mark.parametrize(("lasts", "set_forward", "reset"), [(0, HOUR, False), (2 * HOUR, -2 * HOUR, True)])
def test_a_clock_that_is_set_decides_on_no_restarts(world, lasts, set_forward, reset):
    """An attempt that lasts an hour gives the job all its restarts back."""
    world.create("command: {cmd: 'echo up; sleep 1; exit 1'}")
    world.until(lambda: world.output() == "up\n")
    world.clock.ahead += lasts
    world.clock.set_forward = set_forward
    world.until("failed")
    [ended] = [event for event, _ in world.controller.record.events() if isinstance(event, AttemptEnded)]
    assert ended.restarts_reset is reset


def test_a_clock_that_is_set_back_does_not_prolong_provisioning(world):
    world.cloud.queue = [Waiting("queued", poll_after=60)]
    world.create("tpu: {provision_timeout: 10m}\ncommand: {cmd: 'true'}")
    world.until(lambda: world.state.why == "queued")
    world.clock.set_forward = -HOUR
    world.clock.ahead += 450
    world.steps(1)
    assert world.state.state == "provisioning"
    world.clock.ahead += 151
    world.steps(1)
    assert world.state.failure.kind == "stockout"


def test_the_provision_timeout_includes_a_suspend(world):
    world.cloud.queue = [Waiting("queued", poll_after=60)]
    world.create("tpu: {provision_timeout: 10m}\ncommand: {cmd: 'true'}")
    world.until(lambda: world.state.why == "queued")
    world.clock.suspended = 601
    world.steps(1)
    assert world.state.failure.kind == "stockout"


# --- machines that are about to be deleted -----------------------------------------------------------


@pytest.mark.parametrize("request_", [("delete", {}), ("stop", {"release": True})])
def test_machines_that_are_deleted_do_not_wait_for_unreachable_workers(world, running, request_):
    network = running()
    network.cut(1)
    watch(world, 3)
    tried, ahead = len(network.logins), world.clock.ahead
    action, options = request_
    world.request(action, **options)
    while (delay := world.controller.advance()) is not None:
        time.sleep(min(delay, 0.2))  # worker 0 ends in real time
        world.clock.ahead += 0.5
    assert not world.cloud.up
    assert world.clock.ahead - ahead < 10
    assert network.logins[tried:].count(1) == 1
    if action == "stop":
        assert world.state.why == "" or "worker 1" in world.state.why
        [end] = [e for e, _ in world.controller.record.events() if e.type == "state-changed" and e.to == "stopped"]
        assert end.why == "stopped by user; the output of worker 1 was not fetched: it is unreachable"


def test_machines_that_are_not_deleted_wait_for_unreachable_workers(world, running):
    world.cloud.borrowed = True
    network = running()
    network.cut(1)
    world.request("stop", release=True)
    watch(world, 30)
    assert world.state.state == "stopping"


def test_a_stop_says_which_worker_it_waits_for_and_what_does_not_wait(world, running):
    network = running()
    network.cut(1)
    world.request("stop")
    watch(world, 20, until=lambda: "unreachable" in world.state.why)
    assert world.state.state == "stopping"
    assert world.state.why == (
        "stop requested: worker 1 unreachable for 5 s (no answer); `tpux stop 1 --release` or `tpux delete 1` deletes"
        " the machines without waiting for it"
    )
    network.down.clear()
    watch(world, 40, until=lambda: world.state.state != "stopping" or world.state.why == "stop requested")
    assert world.state.why in {"stop requested", "stopped by user"}
    world.until("stopped")


def test_a_stop_names_no_remedy_for_machines_that_are_not_deleted(world, running):
    world.cloud.borrowed = True
    network = running()
    network.cut(1)
    world.request("stop")
    watch(world, 20, until=lambda: "unreachable" in world.state.why)
    assert world.state.why == "stop requested: worker 1 unreachable for 5 s (no answer)"


def test_a_delete_fetches_no_output(world, running, monkeypatch):
    running()
    polls = []
    poll = process.poll
    monkeypatch.setattr(process, "poll", lambda *args: polls.append(args) or poll(*args))
    world.request("delete")
    while world.controller.advance() is not None:
        pass
    assert polls == []
    assert not world.cloud.up


PRINTS_AT_THE_END = """
command:
  cmd: |
    trap 'trap "" TERM; head -c 100000000 /dev/zero; exit' TERM
    echo ready
    while :; do sleep 0.1; done
"""


@pytest.mark.parametrize(("timeout", "fetched"), [(60.0, True), (0.0, False)])
def test_a_release_says_how_much_output_was_not_fetched(world, monkeypatch, timeout, fetched):
    monkeypatch.setattr("tpux.lifecycle.stop.FETCH_TIMEOUT", timeout)
    monkeypatch.setattr("tpux.lifecycle.stop.FETCH_AT_ONCE", 1)
    world.cloud.workers = 1
    world.create(PRINTS_AT_THE_END)
    world.until(lambda: "ready" in world.output())
    world.request("stop", release=True)
    world.until("stopped")
    [end] = [e for e, _ in world.controller.record.events() if e.type == "state-changed" and e.to == "stopped"]
    [output] = (world.path / "cloud" / "1" / "0").glob(".tpux/runs/**/command/output")
    left = output.stat().st_size - len(world.output())
    expected = f"stopped by user; {left} bytes of the output of worker 0 were not fetched"
    assert end.why == ("stopped by user" if fetched else expected)
    assert (left == 0) is fetched


def test_all_output_is_fetched_from_machines_that_are_kept(world, monkeypatch):
    monkeypatch.setattr("tpux.remote.output.MAX_FETCH", 1)
    monkeypatch.setattr("tpux.lifecycle.stop.FETCH_REPORT_AFTER", 0.0)
    world.cloud.workers = 1
    world.create(PRINTS_AT_THE_END)
    world.until(lambda: "ready" in world.output())
    world.request("stop")
    world.until("stopped")
    [output] = (world.path / "cloud" / "1" / "0").glob(".tpux/runs/**/command/output")
    assert output.stat().st_size == len(world.output())
    reports = [event.why for event, _ in world.controller.record.events() if event.type == "waiting"]
    assert re.search(r"stop requested: fetching the rest of the output, [\d.]+ MB so far", "\n".join(reports))


@pytest.mark.parametrize("seconds", [30, 100])
def test_final_output_of_a_worker_that_is_unreachable_for_a_while(world, running, monkeypatch, seconds):
    network = running()
    ended_at = []
    advance_terminator = stop.terminate

    def cut_after_the_end(context):
        delay = advance_terminator(context)
        if delay is None and not ended_at:
            ended_at.append(world.clock.monotonic())
            network.cut(1)
        return delay

    monkeypatch.setattr(stop, "terminate", cut_after_the_end)
    world.request("stop")
    watch(world, 120, until=lambda: ended_at and world.clock.monotonic() > ended_at[0] + seconds)
    network.down.clear()
    watch(world, 10)
    assert world.state.state == "stopped"
    lost = "the final output of worker 1 was not fetched: no answer; it is in ~/.tpux/runs/"
    assert (lost in world.state.end_why) is (seconds == 100)


class Waits:
    """A module whose set-up waits for a file."""

    @hookimpl
    def setup(self):
        yield sh("touch began; until [ -e go ]; do sleep 0.05; done")


@pytest.mark.parametrize("stopped", [False, True], ids=["set-up", "stop"])
def test_the_allocator_is_not_asked_in_each_step_about_a_worker_that_does_not_answer(world, monkeypatch, stopped):
    world.plugins.add("waits", Waits())
    world.create("setup: {modules: [waits]}\ncommand: {cmd: 'true', grace_period: 1h}")
    network = Network(world, monkeypatch)
    network.down = {1}
    world.restart_supervisor()
    began = world.path / "cloud/1/0/began"
    world.until(began.exists)
    if stopped:
        world.request("stop")
    world.until(lambda: world.controller.workers.unreachable)
    before, since = world.count("inspect"), world.clock.monotonic()
    world.steps(40)
    assert world.count("inspect") - before <= 1 + (world.clock.monotonic() - since) / VERDICT_POLL
    for home in (world.path / "cloud/1").iterdir():
        (home / "go").touch()
    network.down.clear()
    world.until(lambda: world.state.ended)


def test_a_step_that_a_lost_worker_still_runs_is_ended_before_the_next_set_up(world, monkeypatch):
    class Slow:
        """A module whose set-up hangs in the second round."""

        @hookimpl
        def check(self):
            yield sh("echo check >>checks; [ $(wc -l <checks) != 2 ]")

        @hookimpl
        def setup(self):
            yield sh("[ -e begun ] || { echo $$ >pid; touch begun; exec sleep 1000; }")

    world.plugins.add("slow", Slow())
    world.cloud.workers, world.cloud.borrowed = 1, True
    home = world.cloud.root / "1/0"
    world.create("setup: {modules: [slow]}\n" + SHORT + FOREVER)
    network = Network(world, monkeypatch)
    world.restart_supervisor()
    world.until(lambda: world.state.run.running)
    world.request("stop", keep=True)
    world.until("stopped")
    world.request("resume")
    world.until((home / "begun").exists)
    pid = int((home / "pid").read_text())
    network.cut(0)
    watch(world, 300)
    assert world.state.failure.kind == "host-lost"
    network.down.clear()
    world.request("resume")
    world.until(lambda: world.state.attempt == 2)
    assert not alive(pid), "it would write what this set-up writes"


@pytest.fixture
def repairing(world, monkeypatch):
    """A job whose solver runs on its only worker without end, after its first attempt."""

    class Solver:
        @hookimpl
        def classify_failure(self):
            return [Failure("tpu-busy", 0, "busy")]

        @hookimpl
        def solve(self):
            yield sh("echo $$ >pid; touch begun; exec sleep 1000")

    def start(lost_after: str, workers: int = 1) -> tuple[Network, int]:
        world.plugins.add("solver", Solver())
        world.cloud.workers = world.cloud.slices = workers
        cmd = "[ $TPUX_ATTEMPT = 2 ] && exec sleep 1000; exit 1"
        watched = f"watch: {{lost_after: {lost_after}}}\n"
        world.create(f"{watched}job: {{rule: pre}}\ncommand: {{cmd: '{cmd}', grace_period: 0}}\n")
        network = Network(world, monkeypatch)
        world.restart_supervisor()
        world.until((world.cloud.root / "1/0/begun").exists)
        return network, int((world.cloud.root / "1/0/pid").read_text())

    return start


def test_machines_that_are_lost_while_the_solvers_run_are_replaced(world, repairing):
    network, pid = repairing("1h")
    network.cut(0)
    for state in ("ready", "error"):
        world.cloud.state = state
        watch(world, 60)
        assert world.state.state == "recovering", "the network alone proves nothing"
    world.cloud.state, world.cloud.up = "preempted", False
    watch(world, 60, until=lambda: world.cloud.generation == 2)
    replaced = world.cloud.generation == 2
    network.down.clear()
    if replaced:
        world.until(lambda: world.state.run.running and world.state.attempt == 2)
    world.request("stop")
    world.until("stopped")
    if alive(pid):  # on the machine that is gone
        os.kill(pid, signal.SIGKILL)
    assert replaced
    assert dict(world.state.restarts) == {"tpu-busy": 1, "preempted": 1}


def test_a_repair_that_a_lost_worker_still_runs_is_ended_before_the_next_set_up(world, repairing):
    network, pid = repairing("60s")
    network.cut(0)
    watch(world, 300, until=lambda: world.state.state == "setting-up")
    assert alive(pid)
    network.down.clear()
    world.until(lambda: world.state.run.running and world.state.attempt == 2)
    repair_runs_on = alive(pid)
    world.request("stop")
    world.until("stopped")
    assert not repair_runs_on


def alive(pid: int) -> bool:
    """Return whether a process runs; it may be a zombie otherwise."""
    with suppress(FileNotFoundError):
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    return False


def test_a_tpu_that_tpux_did_not_create_is_not_replaced_for_what_its_program_says(world):
    class Detector:
        @hookimpl
        def classify_failure(self):
            return [Failure("host-lost", 0, "the TPU is bad", replacements=2)]

    world.plugins.add("detector", Detector())
    world.cloud.borrowed = True
    world.create("job: {rule: pre}\ncommand: {cmd: exit 1}\nwatch: {verdict_grace: 0}")
    state = world.until("failed")
    assert state.attempt == 1
    assert state.failure.kind == "host-lost"
    assert state.machines.name in state.why
    assert "tpux did not create it" in state.why
    assert "tpux resume 1" in state.failure.hint
