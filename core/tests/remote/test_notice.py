"""The notice of a preemption, recorded on the worker and forwarded to the program, with nobody connected."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tpux.model.job import Command
from tpux.remote.job_runs import remove
from tpux.remote.process import NoticePoller, RemoteProcess, Status, poll, probe, read_notice, start, stop
from tpux.remote.script import render

if TYPE_CHECKING:
    from conftest import Here

WATCH = NoticePoller("until [ -e announced ]; do sleep 0.02; done; cat announced", grace=60, keep=60)
SAVES = 'exec python3 -uc \'import signal, sys, time\ndef save(*_): print("saved"); sys.exit(CODE)\n'
SAVES += 'signal.signal(15, save); print("set"); time.sleep(100)\''


def begin(here: Here, script: str, watch: NoticePoller = WATCH) -> RemoteProcess:
    """Start a run on a worker that waits for a notice, and wait until both have begun."""
    run = here.run()
    start(here.host, run, script, Command(("sh", "-e", run.script), run.script), wait=0.05, notice=watch)
    here.until(lambda: poll(here.host, run, 0).output)
    here.until(lambda: here.pids("/watcher\0"))
    return run


def announce(here: Here, text: str = "preempted is TRUE\n") -> None:
    (here.home / "new").write_text(text)
    (here.home / "new").rename(here.home / "announced")


def ended(here: Here, run: RemoteProcess) -> Status:
    here.follow(run)
    return poll(here.host, run, 0)


@pytest.mark.parametrize("code", [0, 3])
def test_a_notice_is_recorded_and_the_program_gets_sigterm(here: Here, code: int) -> None:
    run = begin(here, SAVES.replace("CODE", str(code)))
    announce(here)
    for status in (ended(here, run), probe(here.host, run, 0)):
        assert (status.phase, status.code, status.output) == ("ended", code, b"set\nsaved\n")
        assert (status.notice, status.signal) == ("preempted is TRUE", "")
    assert probe(here.host, run, 0).reason == "a preemption was announced"
    here.until(lambda: not here.pids())


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(here: Here) -> None:
    run = begin(here, here.stubborn("None"), replace(WATCH, grace=1))
    announce(here)
    assert ended(here, run).code == 137
    assert read_notice(here.host, run) == "preempted is TRUE"
    here.until(lambda: not here.pids())


def test_a_program_gets_sigterm_once_from_the_watcher_and_a_stop(here: Here) -> None:
    run = begin(here, here.stubborn("print('got it', flush=True)"))
    announce(here)
    here.until(lambda: read_notice(here.host, run))
    for _ in range(5):
        stop(here.host, run, signal="TERM")
    here.until(lambda: b"got it" in poll(here.host, run, 0).output)
    here.kill(run)
    assert here.follow(run)[1] == b"set\ngot it\n"


def test_a_program_that_succeeds_ends_the_waiting_at_once(here: Here) -> None:
    run = begin(here, "echo on; until [ -e go ]; do sleep 0.02; done")
    (here.home / "go").touch()
    assert ended(here, run).code == 0
    here.until(lambda: not here.pids())
    announce(here)
    assert read_notice(here.host, run) == ""


def test_a_program_that_ends_before_the_waiting_has_its_own_session_ends_it(here: Here) -> None:
    slow = here.home / "bin/setsid"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase $2 in */watcher) sleep 0.5 ;; esac\nexec {shutil.which("setsid")} "$@"\n')
    slow.chmod(0o700)
    here.host.path = f"{slow.parent}:{here.host.path}"
    run = here.run()
    start(here.host, run, "echo on", Command(("sh", "-e", run.script), run.script), wait=0.05, notice=WATCH)
    assert ended(here, run).code == 0
    here.until(lambda: not here.pids(), 10)


def test_a_notice_soon_after_a_program_that_failed_is_recorded(here: Here) -> None:
    run = begin(here, "echo on; until [ -e go ]; do sleep 0.02; done; exit 143")
    (here.home / "go").touch()
    assert ended(here, run).notice == ""
    announce(here)
    here.until(lambda: read_notice(here.host, run) == "preempted is TRUE")
    here.until(lambda: not here.pids())


def test_the_waiting_ends_some_time_after_a_program_that_failed(here: Here) -> None:
    run = begin(here, "echo on; exit 1", replace(WATCH, keep=1.5))
    assert ended(here, run).code == 1
    here.until(lambda: not here.pids())


@pytest.mark.parametrize("code", [0, 143])
def test_the_shutdown_of_a_machine_signals_every_process(here: Here, code: int) -> None:
    """The waiting survives it, and the runner records it; the program may end before the notice is read."""
    run = begin(here, SAVES.replace("CODE", str(code)))
    here.runner(run)
    for pid in here.pids():
        with suppress(ProcessLookupError):  # it ended as another one did
            os.kill(pid, signal.SIGTERM)
    status = ended(here, run)
    assert (status.code, status.signal, status.notice) == (code, "TERM", "")
    assert probe(here.host, run, 0).signal == "TERM"
    announce(here)
    here.until(lambda: read_notice(here.host, run) == "preempted is TRUE")


def test_a_command_that_fails_is_no_notice_and_is_run_again(here: Here) -> None:
    run = begin(here, SAVES.replace("CODE", "0"), replace(WATCH, command="echo tried >>tries; [ -e announced ]"))
    here.until(lambda: (here.home / "tries").read_text().count("tried") > 1)
    assert probe(here.host, run, 0).notice == ""
    announce(here)
    assert ended(here, run).notice == "announced"


def test_a_notice_on_a_full_disk_has_its_space_reserved(here: Here) -> None:
    run = begin(here, SAVES.replace("CODE", "0"))
    assert here.file(run, "notice.new").stat().st_size == 251
    announce(here, "x" * 10_000 + "\nmore")
    assert ended(here, run).notice == "x" * 240


def test_what_a_notice_says_never_controls_a_terminal(here: Here) -> None:
    run = begin(here, SAVES.replace("CODE", "0"))
    announce(here, "\x1b]52;c;AAAA\x07 two\nlines\tand a tab")
    status = ended(here, run)
    assert status.notice == "]52;c;AAAA two lines and a tab"
    assert probe(here.host, run, 0).notice == status.notice


@pytest.mark.parametrize(("code", "noticed"), [(0, False), (143, True)])
def test_a_notice_between_the_end_of_a_program_and_that_of_the_waiting(here: Here, code: int, *, noticed: bool) -> None:
    run = here.run()
    (here.home / run.directory).mkdir(parents=True)
    (here.home / run.exit).write_text(f"{code}\n")
    script = render("notice", run.id, {"notice": "echo preempted", "grace": 1, "stop_script": "echo tpux-run 0"})
    assert here.host.run(f"set -- 1\n{script}").ok
    assert read_notice(here.host, run) == ("preempted" if noticed else "")


def test_a_killed_runner_leaves_no_waiting_behind(here: Here) -> None:
    run = begin(here, "echo on; exec sleep 100", replace(WATCH, command="sleep 0.3; exit 1"))
    os.kill(here.runner(run), signal.SIGKILL)
    here.until(lambda: not here.pids("/watcher\0"))
    assert probe(here.host, run, 0).phase == "lost"


def test_a_removed_run_leaves_no_waiting_behind(here: Here) -> None:
    run = begin(here, "echo on; exit 1")
    here.follow(run)
    here.until(lambda: remove(here.host, run.job) == 0)
    assert not here.file(run, "watcher").exists()
    announce(here)
    here.until(lambda: not here.pids())
