"""A stop of programs that have ended already: what their workers have recorded decides how the attempt has ended."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.test_notice import NOTICE, announce, home, run_file, shut_down, wait
from tests.world import World
from tpux import hookimpl, sh
from tpux.lifecycle.turn import Turn
from tpux_local.processes import processes_of, send

WAITS = "    echo up\n    until [ -e go ]; do sleep 0.02; done\n"
SAVES = "    trap 'exit 0' TERM\n" + WAITS


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    yield world
    while left := processes_of(home for home in world.cloud.root.glob("*/*") if home.is_dir()):
        send(left, signal.SIGKILL)


def begin(world: World, config: str = "", cmd: str = WAITS, command: str = "") -> None:
    """Create a job, and advance it until its program runs on both workers."""
    world.create(f"{config}command:\n  grace_period: 20s\n{command}  cmd: |\n{cmd}")
    world.until(lambda: world.state.run.running and all("up" in world.output(worker) for worker in (0, 1)))


def finish(world: World, *workers: int) -> None:
    """Let the program end on these workers, by default on both, while no supervisor takes a step."""
    for worker in workers or (0, 1):
        (home(world, worker) / "go").touch()
        wait(run_file(world, worker, "exit").exists)


def stop(world: World, end: str, **options):
    """Stop the job by a new supervisor, and return its state once it has ended."""
    world.request("stop", **options)
    world.restart_supervisor()
    return world.until(end)


def events(world: World, kind: str) -> list:
    return [event for event, _ in world.controller.record.events() if event.type == kind]


def ends(world: World) -> list[tuple[int, str]]:
    return [(ending.code, ending.reason) for _, ending in sorted(world.state.endings.items())]


@pytest.mark.parametrize("code", [0, 3])
def test_programs_that_had_ended_while_no_supervisor_ran(tpux, code):
    job = tpux.create(
        "tpu: {accelerator: v4-16}\n"
        f"command: {{cmd: 'echo up; until [ -e go ]; do sleep 0.05; done; echo end; exit {code}'}}\n"
    )
    tpux.until(lambda: all(tpux.output_so_far(job, worker) == b"up\n" for worker in (0, 1)))
    tpux.kill_supervisor()
    homes = sorted(tpux.machines(job).glob("worker-*"))
    for worker in homes:
        (worker / "go").touch()
        tpux.until(lambda worker=worker: [*worker.glob(".tpux/runs/*/1/command/exit")])
    stopped = tpux("stop", job)
    assert len(homes) == 2
    assert [(event["code"], event.get("reason", "")) for event in tpux.events(job, "worker-exited")] == [(code, "")] * 2
    assert all(tpux.output(job, worker) == b"up\nend\n" for worker in (0, 1))
    [ended] = tpux.events(job, "attempt-ended")
    if code:
        assert (tpux.show(job)["state"], ended["stopped"]) == ("stopped", True)
        return
    assert (tpux.show(job)["state"], ended.get("stopped", False), ended.get("failure")) == ("succeeded", False, None)
    assert f"job {int(job)} succeeded: its program had ended before the stop" in stopped.stderr
    tpux("wait", job)
    assert "has succeeded" in tpux("resume", job, code=2).stderr


def test_a_restart_of_several_jobs_resumes_those_that_had_not_succeeded(tpux):
    jobs = [tpux.create("command: {cmd: 'echo up; until [ -e go ]; do sleep 0.05; done'}\n") for _ in range(2)]
    tpux.until(lambda: all(tpux.output_so_far(job) == b"up\n" for job in jobs))
    tpux.kill_supervisor()
    done, other = jobs
    worker = tpux.machines(done) / "worker-0"
    (worker / "go").touch()
    tpux.until(lambda: [*worker.glob(".tpux/runs/*/1/command/exit")])
    restarted = tpux("restart", "--setup", done, other, "-y", code=None)
    if restarted.returncode:  # the supervisor that the command has started was faster than its request
        assert f"job {int(done)} has succeeded" in restarted.stderr
        assert (tpux.show(done)["state"], tpux.show(other)["attempt"]) == ("succeeded", 1)
        return
    said = restarted.stderr
    assert f"job {int(done)} has succeeded before it was stopped; from scratch: tpux rerun {int(done)}" in said
    assert f"job {int(other)}: resume requested" in said
    tpux.until(lambda: tpux.output_so_far(other, attempt=2) == b"up\n")
    assert (tpux.show(done)["state"], tpux.show(done)["attempt"]) == ("succeeded", 1)


def test_a_job_that_had_succeeded_is_not_restarted(world):
    begin(world)
    finish(world)
    config = world.controller.record.directory / "config-2"
    config.mkdir()
    world.request("stop", ("resume", {"config": config.name}), keep_for=600)
    world.until("succeeded")
    world.steps()
    assert (world.state.state, world.state.attempt, world.state.last_request_number) == ("succeeded", 1, 2)
    assert not config.exists()
    assert world.controller.record.directory.exists()


def test_the_machines_of_a_job_that_had_succeeded_are_released(world):
    begin(world)
    finish(world)
    stop(world, "succeeded")
    world.until(lambda: world.state.done)
    assert world.count("release") == 1


def test_keep_keeps_them(world):
    begin(world)
    finish(world)
    assert stop(world, "succeeded", keep=True).release_at is None
    world.until(lambda: world.state.done)
    assert world.cloud.up


def test_a_looping_job_is_stopped_although_its_attempt_has_succeeded(world):
    begin(world, "job: {loop: true}\n")
    finish(world)
    stop(world, "stopped")
    assert [(event.stopped, event.failure) for event in events(world, "attempt-ended")] == [(False, None)]


def test_a_program_that_is_not_known_to_have_finished_has_not_succeeded(world):
    begin(world, "log: {finished: Training complete}\n", command="  finished_by: [log]\n  require_finished: true\n")
    finish(world)
    stop(world, "stopped")
    assert ends(world) == [(0, ""), (0, "")]


def test_the_stop_ends_the_program_on_one_worker(world):
    begin(world, cmd=SAVES)
    finish(world, 0)
    stop(world, "stopped")
    assert ends(world) == [(0, ""), (0, "ended by tpux")]
    assert [event.stopped for event in events(world, "attempt-ended")] == [True]


@pytest.mark.parametrize("notice", ["", NOTICE])
def test_exit_code_0_after_a_signal_of_the_machine_is_no_success(world, notice):
    world.cloud.notice = notice
    begin(world, cmd=SAVES)
    for worker in (0, 1):
        shut_down(world, worker)
        wait(run_file(world, worker, "exit").exists)
    stop(world, "stopped")
    assert {event.signal for event in events(world, "worker-exited")} == {"TERM"}


def test_exit_code_0_after_a_notice_of_preemption_is_no_success(world):
    world.cloud.notice = NOTICE
    begin(world, cmd=SAVES)
    for worker in (0, 1):
        announce(world, worker)
        wait(run_file(world, worker, "exit").exists)
    stop(world, "stopped")
    assert [event.worker for event in events(world, "preemption-announced")] == [0]


def test_a_program_that_an_environments_own_steps_end(world):
    class Container:
        @hookimpl
        def run(self, command):
            return replace(command, stop=(sh("touch go; sleep 0.5"),))

    world.plugins.add("container", Container())
    begin(world, "job: {env_type: container}\n")
    stop(world, "stopped")
    assert ends(world) == [(0, "ended by tpux")] * 2


def test_a_program_that_had_ended_before_an_environments_own_steps(world):
    class Container:
        @hookimpl
        def run(self, command):
            return replace(command, stop=(sh("touch go; sleep 0.5"),))

    world.plugins.add("container", Container())
    begin(world, "job: {env_type: container}\n")
    finish(world)
    stop(world, "succeeded")
    assert ends(world) == [(0, "")] * 2


def test_a_supervisor_that_dies_while_it_stops_a_job(world):
    """The next one cannot tell by itself who has ended the program; on a full disk the worker cannot either."""
    begin(world, cmd="    trap : TERM\n" + WAITS)
    world.request("stop")
    world.until(lambda: all(run_file(world, worker, "stopped").exists() for worker in (0, 1)))
    finish(world)
    for worker in (0, 1):
        run_file(world, worker, "stopped").unlink()
    world.restart_supervisor()
    world.until("stopped")
    assert ends(world) == [(0, "ended by tpux")] * 2


def test_a_supervisor_that_dies_before_it_asks_the_workers(world):
    begin(world)
    finish(world)
    world.clock.set_forward += 60
    world.request("stop")
    world.until("stopping")
    world.restart_supervisor()
    world.until("succeeded")


def test_a_supervisor_that_dies_after_it_has_recorded_the_success(world, monkeypatch):
    begin(world)
    finish(world)
    world.request("stop")
    world.restart_supervisor()
    write = Turn.write
    monkeypatch.setattr(
        Turn, "write", lambda turn, event: getattr(event, "to", "") != "succeeded" and write(turn, event)
    )
    world.until(lambda: events(world, "attempt-ended"))
    assert world.state.state == "stopping"
    monkeypatch.undo()
    world.restart_supervisor()
    world.until("succeeded")
    assert len(events(world, "attempt-ended")) == 1


def test_a_rerun_of_a_job_that_has_succeeded_is_stopped_before_its_attempt(world):
    begin(world)
    finish(world)
    world.until("succeeded")
    world.request("rerun")
    world.until("pending")
    stop(world, "stopped")


def test_a_clock_that_is_ahead_while_an_environments_own_steps_end_the_program(world):
    """The worker was asked before, and its program ran: no clock is needed to know that tpux has ended it."""

    class Container:
        @hookimpl
        def run(self, command):
            return replace(command, stop=(sh("touch go; sleep 0.5"),))

    world.plugins.add("container", Container())
    begin(world, "job: {env_type: container}\n")
    world.clock.set_forward += 60
    stop(world, "stopped")
    assert ends(world) == [(0, "ended by tpux")] * 2


def test_a_supervisor_that_dies_during_an_environments_own_steps_on_a_machine_whose_clock_is_ahead(world):
    class Container:
        @hookimpl
        def run(self, command):
            return replace(command, stop=(sh("touch stopping; until [ -e go ]; do sleep 0.02; done"),))

    world.plugins.add("container", Container())
    begin(world, "job: {env_type: container}\n")
    world.clock.set_forward += 60
    world.request("stop")
    world.until(lambda: all((home(world, worker) / "stopping").exists() for worker in (0, 1)))
    finish(world)
    world.restart_supervisor()
    world.until("stopped")
    assert ends(world) == [(0, "ended by tpux")] * 2


def test_a_restart_of_several_starts_those_that_have_ended_without_waiting_for_the_others(tpux):
    slow = tpux.create("command: {cmd: 'trap \"\" TERM; echo up; while :; do sleep 0.1; done', grace_period: 1h}\n")
    ended = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux.until(lambda: tpux.output_so_far(slow) == b"up\n")
    tpux("wait", ended, code=100)
    restart = tpux.popen("restart", "-y", slow, ended)
    tpux.until(lambda: len(tpux.events(ended, "attempt-started")) == 2)
    assert tpux.show(slow)["state"] == "stopping"
    restart.kill()
