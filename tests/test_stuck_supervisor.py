"""A supervisor that lives and does nothing: commands say so, its watchdog replaces it, and a user can kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

TICK = 0.1
PLUGIN = """
import time
from pathlib import Path
from tpux import Action, hookimpl
from tpux.supervisor import heartbeat, scheduler

heartbeat.TICK = TICK_SECONDS
wedge = Path(__file__).with_name("wedge")
moves = scheduler.Supervisor._shutdown_requested

def stuck(self):
    if wedge.exists():
        if wedge.read_text() == "once":
            wedge.unlink()
        time.sleep(1000)
    return moves(self)

scheduler.Supervisor._shutdown_requested = stuck

@hookimpl
def on_preempt(): return Action("rerun")
@hookimpl
def classify_failure():
    raise SystemExit("the OLD code")
""".replace("TICK_SECONDS", str(TICK))
GATED = "job: {rule: note}\ncommand: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done; exit $(cat GO)'}\n"


@pytest.fixture(autouse=True)
def own_process(tpux):
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"
    tpux.env["TPUX_CLOCK_RATE"] = "20"  # how long an installation must not have changed


@pytest.fixture
def note(tpux) -> Path:
    return tpux.plugin("tpux-note", PLUGIN, entries="note = tpux_note")


def log(tpux) -> str:
    return next(tpux.home.glob("supervisor/*/log")).read_text()


def heartbeat(tpux) -> Path:
    return next(tpux.home.glob("supervisor/*/heartbeat"))


def starts(tpux) -> int:
    return log(tpux).count(": started, process ")


def gated(tpux) -> tuple[str, Path, int]:
    go = tpux.work / "go"
    job = tpux.create(GATED.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    return job, go, tpux.supervisor()


def age(tpux, seconds: float) -> None:
    """Let the heartbeat of a supervisor that does not move be older than it is."""
    at = time.monotonic() - seconds
    os.utime(heartbeat(tpux), (at, at))


@pytest.mark.system
def test_a_main_loop_that_does_not_move_is_replaced_and_jobs_continue(tpux, note):
    job, go, pid = gated(tpux)
    assert tpux.json("supervisor", "status")["replaced"] == []
    note.with_name("wedge").write_text("once")
    tpux.until(lambda: starts(tpux) == 2, "for the watchdog")
    tpux.until(lambda: tpux.supervisor() == pid, "for the same process")
    assert f"ERROR tpux.supervisor.heartbeat: the main loop does not move: replacing process {pid}\n" in log(tpux)
    assert len(tpux.json("supervisor", "status")["replaced"]) == 1
    assert (
        "  replaced 1 time(s) within an hour, since its main loop did not move\n" in tpux("supervisor", "status").stdout
    )
    go.write_text("0")
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


def test_after_three_times_it_only_reports_and_a_forced_restart_kills_it(tpux, note):
    job, go, pid = gated(tpux)
    wedge = note.with_name("wedge")
    wedge.write_text("always")
    tpux.until(lambda: "is not replaced: it was replaced 3 times within an hour: tpux supervisor" in log(tpux))
    assert starts(tpux) == 4
    age(tpux, 47)
    text = "the supervisor has not moved for "
    assert tpux.show(job)["why"].startswith(text)
    assert tpux.json("list")[0]["why"].startswith(text)
    assert tpux.json("supervisor", "status")["stuck"].endswith(" s: tpux supervisor restart --force")
    assert f"warning: {text}" in tpux("create", "job.yaml").stderr
    wedge.unlink()
    shown = tpux("supervisor", "restart", "--force").stderr
    assert f"the supervisor did not end within 3 s: process {pid} was killed\n" in shown
    assert not tpux.alive(pid)
    go.write_text("0")
    tpux("wait", job, "2")
    assert len(tpux.events(job, "attempt-started")) == 1


def test_a_process_that_was_stopped_is_not_replaced_and_what_is_not_the_holder_is_not_killed(tpux, note):
    job, go, pid = gated(tpux)
    victim = subprocess.Popen(["sleep", "1000"])
    os.kill(pid, signal.SIGSTOP)
    lock = next(tpux.home.glob("supervisor/*/lock"))
    status = lock.read_text()
    try:
        other = {"pid": victim.pid, "began": int(Path(f"/proc/{victim.pid}/stat").read_text().split()[21])}
        for wrong in ({"boot": "another machine's"}, {"began": 1}, other):
            lock.write_text(json.dumps({**json.loads(status), **wrong}))
            failed = tpux("supervisor", "restart", "--force", code=1).stderr
            assert "the supervisor did not end within 3 s" in failed
        assert "was killed" not in failed
        assert tpux.alive(pid)
        assert victim.poll() is None
        next(tpux.home.glob("supervisor/*/stop")).unlink()
        time.sleep(2 * 60 * TICK - 9)  # nothing is asserted of it: longer than what a loop may stand still
    finally:
        victim.kill()
        lock.write_text(status)
        os.kill(pid, signal.SIGCONT)
    beat = heartbeat(tpux).stat().st_mtime
    tpux.until(lambda: heartbeat(tpux).stat().st_mtime > beat + 1)
    assert starts(tpux) == 1
    assert "does not move" not in log(tpux)
    go.write_text("0")
    tpux("wait", job)


def test_an_edited_installation_that_cannot_be_used_does_not_replace_it(tpux, note):
    job, go, _ = gated(tpux)
    note.with_name("wedge").write_text("once")
    tpux.until(lambda: not note.with_name("wedge").exists())
    note.write_text(PLUGIN.replace("return Action", "retrun Action"))
    tpux.until(lambda: "the process is not replaced: job 1: the plugin note is broken: SyntaxError" in log(tpux))
    assert starts(tpux) == 1
    note.write_text(PLUGIN.replace("OLD", "NEW"))
    tpux.until(lambda: starts(tpux) == 2)
    go.write_text("3")
    tpux.until(lambda: "the NEW code" in log(tpux))
    assert "the OLD code" not in log(tpux)
    tpux("stop", job)


SLOW = """
import time
from pathlib import Path
from tpux import hookimpl, sh

@hookimpl
def check():
    Path(__file__).with_name("entered").touch()
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    yield sh("true")

@hookimpl
def setup(): yield sh("true")
"""


def test_a_hook_that_was_stopped_with_its_process_is_not_ended(tpux):
    """A SIGSTOP looks like a hook that blocks; when the check of the installation ends, that is known."""
    module = tpux.plugin("tpux-slow", SLOW, entries="slow = tpux_slow")
    other = tpux.create("command: {cmd: 'sleep 1000'}\n")
    job = tpux.create("setup: {modules: [slow]}\ncommand: {cmd: 'true'}\n")
    tpux.until(module.with_name("entered").exists)
    pid = tpux.supervisor()
    os.kill(pid, signal.SIGSTOP)
    try:
        tpux("stop", job, "--no-wait")
        time.sleep(4)  # 80 s of the supervisor's clock
    finally:
        os.kill(pid, signal.SIGCONT)
    tpux.until(lambda: "checking the installation" in log(tpux))
    module.with_name("go").touch()
    tpux.until(lambda: "nothing is blocked any more" in log(tpux) or starts(tpux) > 1)
    assert starts(tpux) == 1
    tpux("stop", other)
