"""What is watched while a program runs: silence, and workers that run on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.world import World
from tpux import Attempt, Failure, Finished, Steps, Worker, hookimpl, sh
from tpux.cli.logs import logs
from tpux.lifecycle import monitors
from tpux.lifecycle.run import READ_EVERY
from tpux.model.events import AttemptEnded, Warned
from tpux.remote.script import source
from tpux.supervisor import client

STUCK = """
import time
def wait_for_peer():
    time.sleep(1000)
print("FIRST", flush=True)
wait_for_peer()
"""
CONFIG = """
job: {{stalled_after: 1m, rule: pass, output_dir: '{output}'}}
watch: {{compile_timeout: 10m}}
command:
  grace_period: 0
  env: {{PATH: '{path}/bin:/usr/bin:/bin'}}
  cmd: ulimit -c unlimited; exec {python} {path}/stuck.py
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.request("delete")
    made.until(lambda: not made.store.record(made.job).directory.exists())


def silent(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.steps(1)
        world.clock.ahead += 1


def start(world: World, first: str, output: Path | None = None) -> None:
    (world.path / "stuck.py").write_text(STUCK.replace("FIRST", first))
    world.create(CONFIG.format(path=world.path, python=sys.executable, output=output or world.path / "output"))
    world.until(lambda: world.state.run.running and first in world.output() and first in world.output(1))


def test_the_stacks_of_a_stalled_program_are_in_its_output(world: World) -> None:
    start(world, "step 1")
    silent(world, 75)
    failure = world.until("failed").failure
    assert failure is not None
    assert (failure.kind, failure.evidence) == ("stalled", "no worker wrote anything for 60 s")
    assert failure.hint == "where it hung is at the end of its output: tpux logs 1 -n 50"
    for worker in range(2):
        _, _, stack = world.output(worker).partition("tpux: the stack of process ")
        assert "which is ended because it is silent:\nFatal Python error: Aborted\n" in stack
        assert " in wait_for_peer\n" in stack
        home = world.cloud.root / "1" / str(worker)
        assert not [path for path in home.rglob("core*") if path.is_file()]
    [ended] = [event for event, _ in world.controller.record.events() if isinstance(event, AttemptEnded)]
    assert ended.progress is not None
    assert ended.progress.step == 1


@pytest.fixture
def quiet(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return how to wait until no step is due for a long time but quiet ones, which look at files of the workers."""
    world.cloud.poll_after = 100_000.0
    monkeypatch.setattr(monitors, "SOONER", 1)  # the disks of this machine may be nearly full
    monkeypatch.setattr(monitors.random, "uniform", lambda *_: 0.0)  # all workers are examined at the same time

    def wait() -> None:
        def advance() -> bool:
            silent(world, 1)
            watch = world.controller.phase
            return watch is not None and watch.quiet_until > world.clock.monotonic() + 130

        world.until(advance)

    return wait


def test_silence_is_noticed_in_quiet_steps(world: World, quiet: Callable[[], None]) -> None:
    config = "job: {stalled_after: 5m, rule: pass}\ncommand: {cmd: 'echo one; sleep 1000', grace_period: 0}"
    world.create(config)
    world.until(lambda: world.state.run.running and world.output(1))
    quiet()
    silent(world, 120)
    seconds = world.controller.workers.observed.seconds()["silent"]
    assert seconds > 120
    silent(world, 305 - int(seconds))
    failure = world.until("failed").failure
    assert failure is not None
    assert failure.kind == "stalled"
    assert failure.hint == "if its Python stacks could be saved, they are at the end of its output: tpux logs 1 -n 50"


def test_a_killed_runner_is_noticed_in_quiet_steps(world: World, quiet: Callable[[], None]) -> None:
    world.create("job: {rule: pass}\ncommand: {cmd: 'echo $PPID; sleep 1000', grace_period: 0}")
    world.until(lambda: world.state.run.running and world.output().strip() and world.output(1).strip())
    quiet()
    runner = Path("/proc", world.output().strip(), "cmdline")
    os.kill(int(runner.parent.name), signal.SIGKILL)
    while runner.exists() and runner.read_bytes():  # a process that has ended has none, even before it is waited for
        time.sleep(0.01)
    silent(world, 130)
    assert world.state.endings or world.state.ended
    world.until(lambda: silent(world, 1) or world.state.ended)
    failure = world.state.failure
    assert failure is not None
    assert "runner was killed" in failure.evidence


def test_a_program_that_speaks_when_it_is_ended_gets_sigkill_in_time(world: World, quiet: Callable[[], None]) -> None:
    config = """
        job: {stalled_after: 5m, rule: pass}
        command: {cmd: "trap 'echo more' TERM; echo one; while :; do sleep 0.1; done", grace_period: 5s}
    """
    world.create(config)
    world.until(lambda: world.state.run.running and world.output(1))
    quiet()
    silent(world, 150)
    quiet()
    for _ in range(200):  # steps that do nothing would not end it
        if "more" in world.output():
            break
        silent(world, 1)
    world.clock.ahead += 5
    asked = world.clock.monotonic()
    world.until("failed")
    assert world.clock.monotonic() - asked < 60


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stalled_program_that_exits_with_0_when_it_is_ended_has_not_succeeded(world: World, restarted: bool) -> None:
    finisher = Finisher()
    world.plugins.add("finisher", finisher)
    cmd = "trap 'echo saved; exit 0' TERM; echo begin; while :; do sleep 0.05; done"
    world.create(
        "job: {stalled_after: 5s, rule: pass}\n"
        f'command: {{cmd: "{cmd}", env: {{PYTHONFAULTHANDLER: "0"}}, finished_by: [finisher]}}'
    )
    world.until(lambda: all("begin" in world.output(worker) for worker in range(2)))
    while world.state.run.failure is None:
        silent(world, 1)
    finisher.claims = (Finished("saved", 0, at=world.clock.now() + 1), Finished("saved", 1))
    if restarted:
        homes = [world.cloud.root / "1" / str(worker) for worker in range(2)]
        world.until(lambda: all(list(home.glob(".tpux/runs/*/1/command/exit")) for home in homes))
        world.restart_supervisor()
    state = world.until("failed")
    assert state.failure is not None
    assert state.failure.kind == "stalled"
    assert [(ending.code, ending.reason) for ending in state.endings.values()] == [(0, "ended by tpux")] * 2
    assert world.cloud.up, "its machines are kept"


def test_py_spy_is_used_where_it_is_and_the_program_may_end_by_itself(world: World) -> None:
    spy = world.path / "bin/py-spy"
    spy.parent.mkdir()
    spy.write_text('#!/bin/sh\necho "py-spy $1 $2; alive: $(ls -d /proc/$3)"\n')
    spy.chmod(0o755)
    start(world, "step 1")
    silent(world, 75)
    assert world.until("failed").failure.kind == "stalled"
    assert "py-spy dump --pid; alive: /proc/" in world.output()
    assert "Fatal Python error" not in world.output()


def test_the_stacks_are_saved_once_although_the_supervisor_was_killed_meanwhile(world: World) -> None:
    spy = world.path / "bin/py-spy"
    spy.parent.mkdir()
    spy.write_text("#!/bin/sh\necho a stack\n")
    spy.chmod(0o755)
    (world.path / "stuck.py").write_text(STUCK)
    config = CONFIG.replace("exec", "trap '' TERM; exec").replace("grace_period: 0", "grace_period: 1h")
    world.create(config.format(path=world.path, python=sys.executable, output=world.path / "output"))
    world.until(lambda: world.state.run.running and "FIRST" in world.output() and "FIRST" in world.output(1))
    silent(world, 75)
    for _ in range(2):
        world.until(lambda: world.turn.termination.begun)
        world.restart_supervisor()
    world.until(lambda: world.turn.termination.begun)
    hint = world.controller.phase.failure.hint

    def has_failed() -> bool:
        world.clock.ahead += 3601  # in each step: a worker's grace begins once its program has got SIGTERM
        return world.state.state == "failed"

    world.until(has_failed)
    for worker in range(2):
        assert world.output(worker).count("which is ended because it is silent:\na stack\n") == 1
    assert hint == "where it hung is at the end of its output: tpux logs 1 -n 50", "as the first supervisor said"


def test_the_stacks_of_the_first_processes_are_saved(tmp_path: Path) -> None:
    listed = "".join(f"/proc/{pid}/environ\\n" for pid in sorted(range(95, 107), key=str))  # as the shell sorts them
    library = "/usr/lib/python3.11/site-packages/wandb/bin/wandb-core"  # SIGABRT would end its record of the run
    commands = {
        "grep": f'case " $* " in *" TPUX_RUN_ID="*) printf "{listed}" ;; esac',
        "xargs": "shift 2; cat",
        "sudo": "exit 1",
        "readlink": f'case $1 in */96/*) echo {library} ;; *) echo "/usr/bin/python3.11 (deleted)" ;; esac',
    }
    for name, script in {**commands, "tr": "", "sed": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "dir": str(tmp_path), "id": "x"}
    subprocess.run(["sh", "-c", source("stacks")], env=env, check=True, timeout=60)
    saved = re.findall(r"the stack of process (\d+)", (tmp_path / "output").read_text())
    assert [*map(int, saved)] == [95, *range(97, 104)]


def test_a_program_that_compiles_may_be_silent_for_longer(world: World) -> None:
    start(world, "Compiling train_step")
    silent(world, 300)
    assert world.state.state == "running"
    silent(world, 400)
    assert world.until("failed").failure.kind == "stalled"


def test_workers_that_outlast_those_that_ended_with_0_are_reported_and_not_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.cloud.workers = 4
    waits = "until [ -e ~/go ]; do sleep 0.05; done"
    world.create(f"command: {{cmd: '[ $TPUX_WORKER = 3 ] && exit; {waits}', grace_period: 0}}")

    def go(*workers: int) -> None:
        for worker in workers:
            (world.cloud.root / "1" / str(worker) / "go").touch()

    def reported() -> list[Warned]:
        return [event for event, _ in world.controller.record.events() if isinstance(event, Warned)]

    world.until(lambda: world.state.endings.keys() == {3})
    silent(world, 20)
    go(0)
    world.until(lambda: world.state.endings.keys() == {0, 3})
    silent(world, 20)
    assert reported() == [], "another worker ended less than straggler_grace ago"
    silent(world, 20)
    message = "the program still runs on worker 1 and 1 more; on 2 others it has ended with exit code 0"
    assert (world.state.state, world.state.why) == ("running", f"attempt 1: {message}")
    assert world.state.hint.startswith("what it does: tpux logs 1 --worker 1 -n 20; if it hangs: tpux stop 1")
    monkeypatch.setattr(client, "ensure_running", lambda _: True)
    logs("1", tail=1)
    assert capsys.readouterr().err == f"tpux: running: {world.state.why}\ntpux: hint: {world.state.hint}\n"
    world.restart_supervisor()
    silent(world, 1)  # which ending was the last one is known from the next step on
    go(1)
    world.until(lambda: 1 in world.state.endings)
    silent(world, 1)
    assert (world.state.why, world.state.hint) == ("attempt 1", "")
    silent(world, 40)
    assert world.state.why == "attempt 1: the program still runs on worker 2; on 3 others it has ended with exit code 0"
    silent(world, 120)
    assert world.state.state == "running", "it may be saving its last checkpoint"
    [event] = reported()
    assert (event.attempt, event.workers, event.text) == (1, (1, 2), message)
    go(2)
    world.until("succeeded")


class Finisher:
    """A detector that says what the test wants, and counts how often it is asked."""

    asked = 0
    claims: tuple[Finished, ...] = ()

    @hookimpl
    def classify_failure(self) -> list[Finished]:
        self.asked += 1
        return list(self.claims)


def test_a_program_that_finished_only_just_has_time_to_save_its_results(world: World) -> None:
    finisher = Finisher()
    world.plugins.add("finisher", finisher)
    world.create("command: {cmd: 'echo begin; exec sleep 1000', finished_by: [finisher], grace_period: 0}")
    world.until(lambda: world.state.run.running and all("begin" in world.output(worker) for worker in range(2)))
    silent(world, 45)
    assert finisher.asked == 1
    finisher.claims = (Finished("done", 0, at=world.clock.now()),)
    while finisher.asked == 1:
        silent(world, 1)
    silent(world, 20)
    finisher.claims += (Finished("done", 1, at=world.clock.now()),)
    silent(world, 25)
    assert finisher.asked == 3
    assert world.state.state == "running", "worker 1 finished less than straggler_grace ago"
    silent(world, 40)
    assert world.until("succeeded").attempt == 1


class Solver:
    """A solver that does not come to an end, and a detector that asks for it."""

    @hookimpl
    def classify_failure(self, attempt: Attempt) -> list[Failure]:
        return [Failure("tpu-busy", 0, "busy")]

    @hookimpl
    def solve(self, failure: Failure, worker: Worker) -> Steps:
        yield sh("touch ~/solving; exec sleep 345.6")


def test_a_stop_during_repairs_ends_them_and_restarts_nothing(world: World) -> None:
    world.plugins.add("solver", Solver())
    world.create("job: {rule: pre}\ncommand: {cmd: exit 1, grace_period: 0}")
    homes = [world.cloud.root / "1" / str(index) for index in range(2)]
    world.until(lambda: all((home / "solving").exists() for home in homes))
    assert len(_sleeping(world)) == 2
    world.restart_supervisor()  # the repairs continue where they were
    world.steps(3)
    assert world.state.state == "recovering"
    assert len(_sleeping(world)) == 2
    world.request("stop")
    world.until("stopped")
    assert world.state.attempt == 1
    assert world.cloud.up
    assert _sleeping(world) == []


def _sleeping(world: World) -> list[Path]:
    """Return the solvers' processes on the job's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command, variables = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            if command == b"sleep\x00345.6\0" and os.fsencode(world.cloud.root) in variables:
                found.append(path)
    return found


def test_a_silent_program_is_polled_more_often_while_somebody_reads(world: World, quiet: Callable[[], None]) -> None:
    world.create("watch: {poll_every: 8s}\ncommand: {cmd: 'echo begun; exec sleep 1000', grace_period: 0}")
    world.until(lambda: world.state.run.running and world.output() and world.output(1))
    quiet()

    def delay() -> float:
        for _ in range(20):
            last = world.controller.advance()
        assert last is not None
        return last

    assert delay() == 8.0
    reading = world.controller.record.reader_lock
    assert reading.acquire()
    assert delay() <= READ_EVERY
    reading.release()
    assert delay() == 8.0
