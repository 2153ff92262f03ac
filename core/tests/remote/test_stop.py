from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpux.model.steps import Result
from tpux.remote import script
from tpux.remote.hung import hung_processes
from tpux.remote.job_runs import prepare, remove, unfinished
from tpux.remote.process import RemoteProcess, poll, probe, stop

if TYPE_CHECKING:
    from conftest import Here


def test_sigterm_ends_a_run(here: Here) -> None:
    run = here.start_and_wait("sleep 100")
    here.until(lambda: stop(here.host, run, signal="TERM", reason="it took\ntoo long") == 0)
    status = probe(here.host, here.run(), 0)
    assert (status.phase, status.code, status.output, status.reason) == ("ended", 143, b"", "it took too long")


def test_a_program_that_ignores_sigterm(here: Here) -> None:
    run = here.start_stubborn("None")
    assert stop(here.host, run, signal="TERM") == 1
    here.kill(run)
    assert here.follow(run) == (137, b"set\n")


def test_sigterm_is_sent_once(here: Here) -> None:
    run = here.start_stubborn("print('got it', flush=True)")
    for number in ("0", "TERM", "0", "TERM", "TERM"):
        assert stop(here.host, run, signal=number) == 1
    here.until(lambda: b"got it" in poll(here.host, run, 0).output)
    here.kill(run)
    assert here.follow(run) == (137, b"set\ngot it\n")


@pytest.mark.parametrize(
    "script",
    [
        "trap 'sleep 0.7 && echo saved; exit 0' TERM; echo set; while :; do sleep 0.01; done",
        "trap 'sh -c \"sleep 0.7 && echo saved\"; exit 0' TERM; echo set; while :; do sleep 0.01; done",
        """exec python3 -uc '
import signal, subprocess, sys, time
def save(*_): subprocess.run(["sleep", "0.7"], check=True); print("saved"); sys.exit()
signal.signal(signal.SIGTERM, save); print("set"); time.sleep(100)'
""",
    ],
    ids=["shell", "nested", "Python"],
)
def test_what_a_handler_of_sigterm_starts_to_save_a_checkpoint_may_end(here: Here, script: str) -> None:
    run = here.run()
    here.start(script, run, wait=0.05)
    here.until(lambda: poll(here.host, run, 0).output)
    here.until(lambda: stop(here.host, run, signal="TERM") == 0)
    code, output = here.follow(run)
    assert (code, output.endswith(b"saved\n")) == (0, True), output


def test_what_a_handler_has_started_gets_sigterm_once_the_program_has_ended(here: Here) -> None:
    run = here.run()
    here.start("trap 'sleep 100 & sleep 0.5; exit 0' TERM; echo set; while :; do sleep 0.01; done", run, wait=0.05)
    here.until(lambda: poll(here.host, run, 0).output)
    here.until(lambda: stop(here.host, run, signal="TERM") == 0)
    assert not here.pids("sleep\x00100")


def test_sigterm_is_sent_once_to_what_outlives_its_parent(here: Here) -> None:
    run, child = here.run(), here.stubborn("print('got it', flush=True)")
    here.start(f"({child}) & trap 'sleep 0.7; exit 0' TERM; while :; do sleep 0.01; done", run, wait=0.05)
    here.until(lambda: poll(here.host, run, 0).output)
    for _ in range(5):
        assert stop(here.host, run, signal="TERM")
    here.kill(run)
    assert here.follow(run)[1].count(b"got it") == 1


def test_what_a_handler_has_started_is_killed_after_the_grace_period(here: Here) -> None:
    run = here.run()
    here.start("trap 'setsid sleep 100' TERM; echo set; while :; do sleep 0.01; done", run, wait=0.05)
    here.until(lambda: poll(here.host, run, 0).output)
    assert stop(here.host, run, signal="TERM")
    here.kill(run)
    assert not here.pids("sleep\x00100")


def test_daemons_are_found_by_the_run_id(here: Here) -> None:
    script = "(setsid sh -c 'sleep 100 & sleep 101 & exit' &) ; echo done"
    assert here.start(script).phase == "ended"
    here.until(lambda: len(here.pids("sleep\x0010")) == 2)
    here.until(lambda: stop(here.host, here.run(), signal="0") == 2)
    here.until(lambda: stop(here.host, here.run(), signal="TERM") == 0)
    assert not here.pids("sleep\x0010")


def test_what_a_program_starts_when_it_is_ended_is_found(here: Here) -> None:
    run = here.run()
    here.start("trap '(setsid sleep 100 &) ; exit 0' TERM; echo set; while :; do sleep 0.01; done", run, wait=0.05)
    here.until(lambda: poll(here.host, run, 0).output)
    here.until(lambda: stop(here.host, run, signal="TERM") == 0)
    assert not here.pids("sleep\x00100")


def test_processes_without_the_environment_are_found_by_the_session(here: Here) -> None:
    here.start("env -i sleep 100 & env -i sleep 101 & wait", wait=0.05)
    session = here.file(here.run(), "session")
    here.until(lambda: session.exists() and session.read_text().strip())
    here.until(lambda: stop(here.host, here.run(), signal="0") == 3)
    here.kill(here.run())


def test_descendants_without_the_environment_are_found_in_other_sessions(here: Here) -> None:
    here.start("env -i setsid sh -c 'setsid sleep 100 & setsid sleep 101 & wait' & wait", wait=0.05)
    here.until(lambda: stop(here.host, here.run(), signal="0") == 4)
    here.kill(here.run())


def test_zombies_do_not_count(here: Here) -> None:
    here.start("sleep 0 & exec sleep 100", wait=0.05)
    here.until(lambda: here.pids("sleep\x00100"))
    here.until(lambda: stop(here.host, here.run(), signal="0") == 1)


def test_an_exiting_process_counts(here: Here) -> None:
    """It has no environment any more, and may still hold a device; `sleep` stands in for one found before."""
    here.start("echo done")
    with subprocess.Popen(["sleep", "100"]) as found:
        began = Path(f"/proc/{found.pid}/stat").read_text().rpartition(")")[2].split()[19]
        signalled = here.file(here.run(), "signalled")
        signalled.write_text(f"{found.pid}:{began} 1:1\n")
        assert stop(here.host, here.run(), signal="0") == 1
        signalled.write_text(f"{found.pid}:{int(began) + 1}\n")
        assert stop(here.host, here.run(), signal="0") == 0
        found.kill()


def test_other_runs_are_not_signalled(here: Here) -> None:
    here.start_and_wait("sleep 100", here.run("one"))
    here.start_and_wait("sleep 101", here.run("one-more"))
    here.kill(here.run("one"))
    assert unfinished(here.host, here.run().job) == [here.run("one-more")]


def test_the_same_run_of_another_worker_on_this_machine_is_not_signalled(here: Here) -> None:
    (here.home.parent / "other").mkdir()
    other = replace(here, host=replace(here.host, home=here.home.parent / "other"))
    here.start_and_wait("sleep 100")
    other.start_and_wait("exec sleep 100")
    assert stop(other.host, here.run(), signal="0") == 1
    here.kill(here.run())
    assert probe(other.host, here.run(), 0).phase == "running"
    other.kill(here.run())


def test_a_program_whose_runner_was_killed_is_found(here: Here) -> None:
    run = here.start_and_wait("sleep 100")
    os.kill(here.runner(run), signal.SIGKILL)
    here.until(lambda: probe(here.host, run, 0).phase == "lost")
    here.until(lambda: stop(here.host, run, signal="TERM") == 0)
    assert not here.pids("sleep")


def test_a_run_that_was_stopped_before_its_start_is_not_started(here: Here) -> None:
    assert stop(here.host, here.run(), signal="TERM") == 0
    status = here.start("touch ran")
    assert (status.phase, status.reason) == ("lost", "it was stopped before it started")
    assert not (here.home / "ran").exists()


def test_a_star_stands_for_runs_that_have_not_ended(here: Here) -> None:
    here.start("setsid sleep 100 &", here.run("r1-mount"))
    here.start("sleep 101", here.run("r1-install"), wait=0.05)
    here.start("sleep 102", here.run("r2-install"), wait=0.05)
    here.until(lambda: len(here.pids("sleep\x0010")) == 3)
    here.kill(here.run("r1-*"))
    here.until(lambda: not here.pids("sleep\x00101"))
    assert here.pids("sleep\x00100"), "the daemon of an ended step keeps running"
    assert here.pids("sleep\x00102")
    assert stop(here.host, here.run("r3-*"), signal="KILL") == 0
    with pytest.raises(ValueError, match="does not name a single run"):
        here.start("true", here.run("r1-*"))


def test_removing_old_runs(here: Here) -> None:
    for attempt in (1, 2, 3):
        here.start("echo done", here.run("setup", attempt))
    here.start_and_wait("sleep 100", here.run("command", 1))
    job = here.run().job
    assert prepare(here.host, job, 3).running == 1
    assert {path.name for path in (here.home / ".tpux/runs" / job).iterdir()} == {"1", "3"}
    here.kill(here.run())
    assert remove(here.host, job) == 0
    assert remove(here.host, job) == 0
    assert list((here.home / ".tpux/runs").iterdir()) == []
    assert unfinished(here.host, "another") == []
    assert prepare(here.host, RemoteProcess("another", 1, "x").job, 9).running == 0


def test_sudo_is_used_if_it_needs_no_password(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for a user who is not root: only sudo sees and ends other users' processes."""
    (here.home / "bin").mkdir()
    (here.home / "bin/sudo").write_text('#!/bin/sh\nshift; echo "$1" >>sudo.log; exec "$@"\n')
    (here.home / "bin/sudo").chmod(0o755)
    (here.home / "status").write_text("Umask:\t0022\nUid:\t1000\t1000\t1000\t1000\n")
    source = script.source
    monkeypatch.setattr(script, "source", lambda name: source(name).replace("/proc/self/status", '"$HOME/status"'))
    run = here.start_and_wait("sleep 100")
    here.host.path = f"{here.home}/bin:{here.host.path}"
    stop(here.host, run, signal="KILL")
    assert (here.home / "sudo.log").read_text() == "true\nsh\n"
    here.until(lambda: probe(here.host, run, 0).phase == "ended")


def test_a_process_that_could_still_run_does_not_hang(here: Here) -> None:
    run = here.start_stubborn("None")
    assert stop(here.host, run, signal="TERM") == 1
    assert hung_processes(here.host, run) == []
    here.kill(run)


@pytest.mark.parametrize(
    ("state", "pending", "memory", "hangs"),
    [
        ("D (disk sleep)", "0000000000000100", "VmSize:\t    3000 kB\n", True),
        ("D (disk sleep)", "0000000000000000", "", True),
        ("D (disk sleep)", "0000000000004000", "VmSize:\t    3000 kB\n", False),
        ("S (sleeping)", "0000000000000100", "VmSize:\t    3000 kB\n", False),
    ],
    ids=["killed", "exiting", "of a user whose processes get no signal", "not in the kernel"],
)
def test_what_hangs_waits_in_the_kernel_and_has_got_sigkill(
    here: Here, monkeypatch: pytest.MonkeyPatch, state: str, pending: str, memory: str, hangs: bool
) -> None:
    status = f"State:\t{state}\nPid:\t12\n{memory}SigPnd:\t{pending}\nShdPnd:\t0000000000000000\n"
    monkeypatch.setattr(here.host, "run", lambda _: Result(0, status.encode()))
    assert hung_processes(here.host, here.run("r1-*")) == [12] * hangs
