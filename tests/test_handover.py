"""A supervisor whose installation has changed replaces its process by one that runs the new code, if that works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tpux as core

PLUGIN = """
from tpux import Action, hookimpl

@hookimpl
def on_preempt(): return Action("rerun")
@hookimpl
def classify_failure():
    raise SystemExit("the OLD code")
"""
GATED = "job: {rule: note}\ncommand: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done; exit $(cat GO)'}\n"


def log(tpux) -> str:
    return next(tpux.home.glob("supervisor/*/log")).read_text()


def starts(tpux, pid: int) -> int:
    """Return how often a supervisor of this process id has started."""
    return log(tpux).count(f"started, process {pid}\n")


def gated(tpux) -> tuple[str, Path]:
    go = tpux.work / "go"
    job = tpux.create(GATED.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    return job, go


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


@pytest.fixture
def note(tpux) -> Path:
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    return tpux.plugin("tpux-note", PLUGIN, entries="note = tpux_note")


def test_an_edited_plugin_is_used_by_the_running_supervisor(tpux, note):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    write(note, PLUGIN.replace("OLD", "NEW"))
    tpux.until(lambda: starts(tpux, pid) == 2, "for the supervisor to replace itself")
    tpux.until(lambda: tpux.supervisor() == pid, "for its status")
    assert tpux.show(job)["state"] == "running"
    go.write_text("3")
    tpux.until(lambda: "the NEW code" in log(tpux))
    assert "the OLD code" not in log(tpux)
    tpux("stop", job)
    assert len(tpux.events(job, "attempt-started")) >= 1


def test_an_edit_that_cannot_be_imported_is_reported_and_the_old_code_drives_on(tpux, note):
    _, go = gated(tpux)
    pid = tpux.supervisor()
    write(note, PLUGIN.replace("return", "retrun"))
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the check to fail")
    problem = tpux.json("supervisor", "status")["problem"]
    assert "the plugin note is broken: SyntaxError: invalid syntax (tpux_note.py, line 5)" in problem
    assert problem in tpux("supervisor", "status").stdout
    assert log(tpux).count("cannot be used") == 1
    assert starts(tpux, pid) == 1
    go.write_text("3")
    tpux.until(lambda: "the OLD code" in log(tpux))


CHECK = """
import sys
from tpux.supervisor import check
from tpux.supervisor.__main__ import main
check.TIMEOUT = 20
sys.argv = ["tpux.supervisor", "--check", "JOB"]
main()
"""


@pytest.mark.system
def test_the_check_of_an_edit_names_the_plugin_that_does_not_return(tpux, note):
    job, go = gated(tpux)
    tpux("supervisor", "stop")
    note.write_text(PLUGIN + "import time\ntime.sleep(1000)\n")
    command = [sys.executable, "-c", CHECK.replace("JOB", job)]
    done = subprocess.run(command, env=tpux.env, capture_output=True, text=True, timeout=100)
    last = "plugin note (tpux-note 1.0) has not returned from its import within 20 s"  # the line that is reported
    assert done.stderr.splitlines()[-1] == last
    assert done.returncode == 1
    note.write_text(PLUGIN)
    tpux("supervisor", "start")
    go.write_text("0")
    tpux("wait", job)


@pytest.mark.system
def test_a_corrected_edit_is_used(tpux, note):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    write(note, PLUGIN.replace("return", "retrun"))
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the check to fail")
    write(note, PLUGIN + "#\n")
    tpux.until(lambda: starts(tpux, pid) == 2, "for the corrected code to be used")
    tpux.until(lambda: tpux.supervisor() == pid, "for its status")
    assert tpux.json("supervisor", "status")["problem"] == ""
    go.write_text("0")
    tpux("wait", job)


@pytest.mark.system
def test_a_plugin_that_changes_its_own_source_is_reported_and_not_checked_without_end(tpux, note):
    _, go = gated(tpux)
    pid = tpux.supervisor()
    write(note, PLUGIN + "import pathlib, time\npathlib.Path(__file__).with_suffix('.py').open('a').write('#\\n')\n")
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the changes to be reported")
    problem = tpux.json("supervisor", "status")["problem"]
    said = rf"it has changed during each of the last \d checks, the last time in {re.escape(str(note))}: a plugin"
    assert re.match(said, problem)
    assert starts(tpux, pid) == 1
    go.write_text("3")
    tpux.until(lambda: "the OLD code" in log(tpux))


@pytest.mark.system
def test_an_installed_dist_is_noticed(tpux, note):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    info = note.parent / "other-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    tpux.until(lambda: starts(tpux, pid) == 2)
    go.write_text("0")
    tpux("wait", job)
    assert tpux.output(job) == b"up\n"


def another_core(tpux) -> Path:
    """Put a copy of core before the installed one, and return its directory."""
    copy = tpux.work.parent / "copy"
    shutil.copytree(Path(core.__file__).parent, copy / "tpux", ignore=shutil.ignore_patterns("__pycache__"))
    tpux.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    return copy / "tpux"


@pytest.mark.system
def test_worker_scripts_and_modules_that_change_are_not_mixed_with_the_old_ones(tpux):
    package = another_core(tpux)
    job = tpux.create("command: {cmd: 'echo up; sleep 1000'}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    path = tpux.env.pop("PYTHONPATH")
    for script in (package / "remote/scripts").glob("*.sh"):
        write(script, "exit 9\n")
    for module in ("lifecycle/stop.py", "store/fold.py"):
        write(package / module, "a syntax error\n")
    assert "stopped" in tpux("stop", job).stderr
    tpux.env["PYTHONPATH"] = path


@pytest.mark.system
def test_a_core_that_cannot_be_imported_is_not_used(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    package = another_core(tpux)
    job = tpux.create("command: {cmd: 'echo up; sleep 1000'}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    write(package / "lifecycle/stop.py", "a syntax error\n")
    del tpux.env["PYTHONPATH"]
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the check to fail")
    assert "SyntaxError: invalid syntax" in tpux.json("supervisor", "status")["problem"]
    assert "lifecycle/stop.py:1" in tpux.json("supervisor", "status")["problem"]
    assert "stopped" in tpux("stop", job).stderr


@pytest.mark.system
def test_a_command_of_another_installation_warns_and_replaces_nothing(tpux):
    job, go = gated_plain(tpux)
    pid = tpux.supervisor()
    package = another_core(tpux)
    warning = tpux("list").stderr
    assert "warning: this is tpux 0.1.0 of" in warning
    assert str(package) in warning
    assert str(Path(core.__file__).parent) in warning
    assert "`tpux supervisor stop` and `start`" in warning
    assert "installation" not in tpux("list").stderr, "once"
    status = tpux("supervisor", "status").stdout
    assert "(this is tpux 0.1.0 of" in status
    assert tpux.supervisor() == pid
    assert tpux.json("supervisor", "status")["installation"]["package"] == str(Path(core.__file__).parent)
    go.write_text("0")
    tpux("wait", job)


def gated_plain(tpux) -> tuple[str, Path]:
    go = tpux.work / "go"
    job = tpux.create(GATED.replace("GO", str(go)).replace("job: {rule: note}\n", ""))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    return job, go


def started_meanwhile(tpux) -> bool:
    return tpux("supervisor", "start").returncode == 0


@pytest.mark.system
def test_no_other_supervisor_starts_during_a_handover(tpux, note):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    for number in range(2, 4):
        write(note, PLUGIN + f"# {number}\n")
        tpux.until(lambda number=number: started_meanwhile(tpux) and starts(tpux, pid) == number)
    assert "started, process" not in log(tpux).replace(f"started, process {pid}\n", "")
    go.write_text("0")
    tpux("wait", job)
    assert tpux.output(job) == b"up\n"
    assert len(tpux.events(job, "attempt-started")) == 1


BLOCKS = """
import time
from pathlib import Path
from tpux import hookimpl, sh

@hookimpl
def check():
    while Path(__file__).with_name("block").exists():
        time.sleep(0.01)
    yield sh("true")
@hookimpl
def setup(): yield sh("true")
"""
MODULE = "setup: {modules: [NAME]}\ncommand: {cmd: 'echo up; sleep 1000'}\n"


def blocked_job(tpux, blocking: Path) -> str:
    blocking.with_name("block").touch()
    job = tpux.create(MODULE.replace("NAME", "blocks"))
    tpux.until(lambda: "has not returned from check" in tpux.show(job)["why"], "for the hook to be reported")
    return job


@pytest.mark.system
def test_a_stop_is_not_held_up_by_the_broken_plugin_of_another_job(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    blocking = tpux.plugin("tpux-blocks", BLOCKS, entries="blocks = tpux_blocks")
    other = tpux.plugin("tpux-other", BLOCKS.replace("block", "no"), entries="other = tpux_other")
    running = tpux.create(MODULE.replace("NAME", "other"))
    tpux.until(lambda: tpux.output_so_far(running) == b"up\n")
    job = blocked_job(tpux, blocking)
    write(other, "a syntax error\n")
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the check to fail")
    assert f"job {int(job)} stopped" in tpux("stop", job).stderr
    tpux.until(lambda: "the plugin other is broken: SyntaxError" in tpux.show(running)["why"])
    assert tpux.show(running)["state"] == "running"
    write(other, BLOCKS + "#\n")
    tpux.until(lambda: tpux.show(running)["why"] == "attempt 1")


@pytest.mark.system
def test_a_stop_that_waits_for_the_installation_says_so(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    blocking = tpux.plugin("tpux-blocks", BLOCKS, entries="blocks = tpux_blocks")
    site = tpux.env["PYTHONPATH"]
    core_copy = another_core(tpux)
    tpux.env["PYTHONPATH"] = f"{site}{os.pathsep}{core_copy.parent}"
    job = blocked_job(tpux, blocking)
    write(core_copy / "lifecycle/stop.py", "a syntax error\n")
    tpux.env["PYTHONPATH"] = site
    tpux("stop", job, "--no-wait")
    tpux.until(lambda: tpux.json("supervisor", "status")["problem"], "for the check to fail")
    waited = tpux("wait", job, "--timeout", "3s", code=1).stderr
    assert "has not returned from check for more than a minute; the installation on the disk cannot be used" in waited
    assert "lifecycle/stop.py:1" in waited
