"""A preemption that is announced: the program saves a checkpoint, and the job resumes on new machines."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.world import World
from tpux_local.processes import processes_of, send

NOTICE = 'until [ -e "$HOME/announced" ]; do sleep 0.02; done; cat "$HOME/announced"'
SAVES = """
    trap 'echo saved; : >"$TPUX_OUTPUT_DIR/saved-$TPUX_WORKER"; exit CODE' TERM
    echo attempt $TPUX_ATTEMPT
    [ "$TPUX_RESUME" = 0 ] || exit 0
    while :; do sleep 0.02; done
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.cloud.notice = NOTICE
    yield world
    while left := processes_of(home for home in world.cloud.root.glob("*/*") if home.is_dir()):
        send(left, signal.SIGKILL)


def begin(world: World, code: int = 0, cmd: str = SAVES, watch: str = "watch: {verdict_grace: 5m}\n") -> None:
    """Create a job on spot machines, and advance it until its program runs on both workers."""
    cmd = cmd.replace("CODE", str(code))
    world.create(f"tpu: {{pricing: spot}}\n{watch}command:\n  grace_period: 1m\n  cmd: |{cmd}")
    world.until(lambda: all("attempt 1" in world.output(worker) for worker in (0, 1)))


def home(world: World, worker: int) -> Path:
    return world.cloud.root / "1" / str(worker)


def announce(world: World, worker: int) -> None:
    (home(world, worker) / "new").write_text("preempted is TRUE\n")
    (home(world, worker) / "new").rename(home(world, worker) / "announced")


def run_file(world: World, worker: int, name: str) -> Path:
    [directory] = home(world, worker).glob(".tpux/runs/*/1/command")
    return directory / name


def wait(condition) -> None:
    """Wait until a condition holds, while no supervisor takes a step."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shut_down(world: World, worker: int) -> None:
    """Send SIGTERM to every process of a worker, as the shutdown of a machine does; a notice comes later, if at all."""
    send(processes_of([home(world, worker)]), signal.SIGTERM)


def history(world: World, kind: str) -> list:
    return [event for event, _ in world.controller.record.events() if event.type == kind]


def whys(world: World) -> str:
    return "; ".join(event.why for event in history(world, "waiting"))


@pytest.mark.parametrize("code", [0, 143])
def test_a_notice_on_one_worker_preempts_the_job_although_the_api_says_ready(world, code):
    begin(world, code)
    announce(world, 1)
    state = world.until("succeeded")
    assert (state.attempt, state.preemptions, world.cloud.generation) == (2, 1, 2)
    assert all(world.output(worker).endswith("saved\n") for worker in (0, 1))
    [ended, _] = history(world, "attempt-ended")
    assert (ended.failure.kind, ended.failure.worker) == ("preempted", 1)
    assert ended.failure.evidence == "preemption announced: preempted is TRUE"
    assert "checking" not in whys(world), "a notice is certain"


def test_a_notice_while_the_supervisor_is_away(world):
    begin(world)
    announce(world, 0)
    wait(lambda: run_file(world, 0, "exit").exists())
    assert "saved" in run_file(world, 0, "output").read_text()
    assert not run_file(world, 1, "exit").exists(), "its machine has announced nothing"
    world.restart_supervisor()
    assert world.until("succeeded").preemptions == 1
    assert world.output(1).endswith("saved\n")


def test_a_supervisor_that_dies_after_it_has_read_the_notice(world):
    begin(world)
    announce(world, 0)
    world.until(lambda: world.state.run.notice)
    world.restart_supervisor()
    for worker in (0, 1):
        world.until(lambda worker=worker: worker in world.state.endings)
        world.restart_supervisor()
    state = world.until("succeeded")
    assert (state.preemptions, len(history(world, "preemption-announced"))) == (1, 1)


def test_a_machine_that_vanishes_after_its_notice_is_not_waited_for_long(world):
    begin(
        world,
        cmd="\n    trap '' TERM\n    echo attempt $TPUX_ATTEMPT\n    [ $TPUX_RESUME = 1 ] || sleep 1000\n",
        watch="watch: {verdict_grace: 30s}\n",
    )
    announce(world, 0)
    world.until(lambda: world.state.run.notice)
    home(world, 0).rename(home(world, 0).with_name("gone"))
    began = world.clock.monotonic()
    for _ in range(400):
        if world.state.state != "running":
            break
        world.steps(1)
        world.clock.ahead += 2
        time.sleep(0.03)  # connections are tried in real time
    assert world.state.failure.kind == "preempted"
    assert world.clock.monotonic() - began < 600, "not watch.lost_after"


@pytest.mark.parametrize("code", [0, 143])
def test_a_shutdown_that_comes_before_its_notice(world, code):
    begin(world, code)
    for worker in (0, 1):
        shut_down(world, worker)
    world.until(lambda: "checking" in whys(world))
    assert world.state.state == "running"
    announce(world, 1)
    world.until("recovering")
    assert world.state.failure.kind == "preempted"
    assert {event.signal for event in history(world, "worker-exited")} == {"TERM"}


@pytest.mark.parametrize("code", [0, 143])
def test_a_shutdown_that_the_api_reports_later(world, code):
    begin(world, code)
    for worker in (0, 1):
        shut_down(world, worker)
    world.until(lambda: "checking" in whys(world))
    world.restart_supervisor()
    world.steps(3)
    world.cloud.state, world.cloud.up = "preempted", False
    world.until(lambda: world.state.failure)
    assert (world.state.failure.kind, world.state.failure.evidence) == ("preempted", "it is preempted")


@pytest.mark.parametrize(("code", "end"), [(0, "succeeded"), (143, "failed")])
def test_a_signal_without_a_preemption_counts_after_the_verdict_grace(world, code, end):
    begin(world, code)
    for worker in (0, 1):
        shut_down(world, worker)
    world.until(lambda: "checking" in whys(world))
    for _ in range(50):
        world.steps(1)
        world.clock.ahead += 3
    assert world.state.state == "running"
    world.clock.ahead += 3600  # a suspend: at most two intervals of it count
    world.steps(2)
    assert world.state.state == "running"
    for _ in range(60):
        world.steps(1)
        world.clock.ahead += 3
    state = world.until(end)
    assert code == 0 or state.failure.kind == "program"


def test_a_failed_program_counts_as_such_after_the_verdict_grace(world):
    cmd = "\n    echo attempt $TPUX_ATTEMPT\n    exit 3\n"
    begin(world, cmd=cmd, watch="watch: {verdict_grace: 0.2s}\n")
    state = world.until("failed")
    assert (state.failure.kind, state.failure.evidence) == ("program", "exit code 3: attempt 1")
    assert "checking for 0 s" in whys(world)


def test_machines_without_notices_are_not_checked_further(world):
    world.cloud.notice = ""
    begin(world, cmd="\n    echo attempt $TPUX_ATTEMPT\n    exit 3\n")
    world.until("failed")
    assert "checking" not in whys(world)


@pytest.mark.parametrize("code", [0, 143])
def test_a_shutdown_of_a_machine_that_announces_nothing_is_a_failure_of_the_machine(world, code):
    world.cloud.notice = ""
    begin(world, code, watch="job: {rule: pass}\nwatch: {straggler_grace: 0.1s}\n")
    shut_down(world, 1)
    state = world.until("failed")
    assert (state.failure.kind, state.failure.worker) == ("infra", 1)
    assert state.failure.evidence.startswith(f"its machine sent SIGTERM; exit code {code}")
    assert state.failure.hint == "tpux logs 1 --worker 1"
    assert state.endings[0].reason == "ended by tpux"


def test_exit_code_0_everywhere_is_a_success_at_once(world):
    begin(world, cmd="\n    echo attempt $TPUX_ATTEMPT\n")
    world.until("succeeded")
    assert "checking" not in whys(world)


def test_a_notice_after_the_programs_had_succeeded_changes_nothing(world):
    begin(world, cmd="\n    echo attempt $TPUX_ATTEMPT\n    until [ -e go ]; do sleep 0.02; done\n")
    for worker in (0, 1):
        (home(world, worker) / "go").touch()
    wait(lambda: all(run_file(world, worker, "exit").exists() for worker in (0, 1)))
    announce(world, 0)
    announce(world, 1)
    world.restart_supervisor()
    assert world.until("succeeded").preemptions == 0


def test_a_notice_outranks_exit_code_0_on_the_other_workers(world):
    cmd = """
    echo attempt $TPUX_ATTEMPT
    [ $TPUX_WORKER = 1 ] || exit 0
    [ $TPUX_RESUME = 0 ] || exit 0
    trap 'exit 0' TERM
    while :; do sleep 0.02; done
"""
    begin(world, cmd=cmd)
    world.until(lambda: 0 in world.state.endings)
    announce(world, 1)
    state = world.until("succeeded")
    assert (state.attempt, state.preemptions) == (2, 1)


def test_a_stop_during_the_grace_period(world):
    cmd = """
    trap 'echo term' TERM
    echo attempt $TPUX_ATTEMPT
    until [ -e go ]; do sleep 0.02; done
    echo done
"""
    begin(world, cmd=cmd)
    announce(world, 0)
    world.until(lambda: "term" in world.output(0) and "term" in world.output(1))
    world.request("stop")
    world.until("stopping")
    for worker in (0, 1):
        (home(world, worker) / "go").touch()
    state = world.until("stopped")
    assert (state.attempt, state.failure) == (1, None)
    assert [world.output(worker).count("term\n") for worker in (0, 1)] == [1, 1], "SIGTERM is sent once"


def test_nothing_waits_for_a_notice_after_the_job(world):
    begin(world, cmd="\n    echo attempt $TPUX_ATTEMPT\n")
    world.until("succeeded")
    wait(lambda: not processes_of([home(world, 0), home(world, 1)]))
