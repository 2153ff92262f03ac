"""Hooks that never return: they are reported, cost other jobs nothing, and do not prevent a stop or a deletion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLUGIN = """
from pathlib import Path
import time
from tpux import hookimpl, sh
import tpux_local

HERE = Path(__file__).parent

def block(hook):
    with (HERE / "calls").open("a") as file:
        file.write(hook + "\\n")
    while (HERE / hook).exists():
        time.sleep(0.01)

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request):
    with (HERE / "interrupted").open("a") as file:
        file.write(f"provision {request.interrupted}\\n")
    block("provision")
    return tpux_local.provision(request)
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request):
    with (HERE / "interrupted").open("a") as file:
        file.write(f"release {request.interrupted}\\n")
    block("release")
    return tpux_local.release(request)
@hookimpl
def check():
    block("check")
    yield sh("true")
@hookimpl
def setup(): yield sh("true")
@hookimpl
def connect(worker, job): return tpux_local.connect(worker, job)
"""
CONFIG = """
tpu: {allocation_mode: note, accelerator: v4-16}
setup: {modules: [note]}
command: {cmd: sleep 1000, grace_period: 1s}
"""


@pytest.fixture
def note(tpux) -> Path:
    """Install the plugin `note`, whose hooks block while a file of their name exists, and let a minute be short."""
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    return tpux.plugin("tpux-note", PLUGIN, entries="note = tpux_note").parent


def message(hook: str) -> str:
    return f"plugin note (tpux-note 1.0) has not returned from {hook} for more than a minute"


def until_blocked(tpux, job: str, hook: str) -> None:
    tpux.until(lambda: tpux.show(job)["why"] == message(hook), f"for {hook} to be reported")


@pytest.mark.parametrize("hook", ["check", "provision"])
def test_a_blocked_hook_is_reported_and_a_stop_ends_it(tpux, note, hook):
    (note / hook).touch()
    job = tpux.create(CONFIG)
    until_blocked(tpux, job, hook)
    assert message(hook)[:40] in tpux("list").stdout
    assert tpux.json("supervisor", "status")["blocked"] == {job: message(hook)}
    assert message(hook) in tpux("supervisor", "status").stdout
    assert f"job {job}: {message(hook)}; other jobs continue" in tpux.log()
    tpux("run", tpux.config("command: {cmd: 'true'}\n", "other.yaml"))
    assert (note / "calls").read_text().splitlines().count(hook) <= 2, "the job gets no other turn: one per worker"
    pid = tpux.supervisor()
    assert "stopped" in tpux("stop", job).stderr
    log = next(tpux.home.glob("supervisor/*/log")).read_text()
    assert log.count(f"started, process {pid}\n") == 2, "replaced, with the same process id"
    assert f"job {job}: its turn did not return, and is ended with this process" in log
    (note / hook).unlink()
    tpux("delete", job, "-y")
    answers = (note / "interrupted").read_text().split("\n")
    assert f"release {hook == 'provision'}" in answers


@pytest.mark.system
def test_a_call_of_a_worker_that_is_in_no_hook_is_named(tpux):
    """As where the store's own disk hangs: here a file beside the log is a pipe into which nobody writes."""
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    waits = "until [ -e $HOME/../go ]; do sleep 0.05; done"
    job = tpux.create(f"tpu: {{accelerator: v4-16}}\ncommand: {{cmd: 'echo up; {waits}'}}\n")
    tpux.until(lambda: tpux.output_so_far(job, 1), "for the output of worker 1")
    log = tpux.directory(job) / "logs/attempt-1/command_worker_1.log"
    os.mkfifo(pipe := log.with_suffix(".origin"))  # which only a call of the worker reads, unlike the log
    os.link(pipe, opened := log.with_name("opened"))
    message = "worker 1: a poll of its program has not returned for more than a minute"
    tpux.until(lambda: tpux.show(job)["why"] == message, "for the call to be reported")
    assert f"job {job}: {message}; other jobs continue" in tpux.log()
    pipe.unlink()  # before the call returns: no other one may meet it
    os.close(os.open(opened, os.O_WRONLY))
    (tpux.machines(job) / "go").touch()
    tpux("wait", job)
    assert log.read_bytes() == b"up\n"


@pytest.mark.system
@pytest.mark.parametrize("hook", ["check", "provision"])
def test_a_job_whose_hook_blocks_can_be_deleted(tpux, note, hook):
    (note / hook).touch()
    job = tpux.create(CONFIG)
    until_blocked(tpux, job, hook)
    assert f"job {int(job)} deleted" in tpux("delete", job, "-y").stderr


@pytest.mark.system
def test_a_delete_whose_release_blocks_keeps_the_record(tpux, note):
    job = tpux.create(CONFIG)
    tpux.until_state(job, "running")
    (note / "release").touch()
    done = tpux("delete", job, "-y", code=1)
    assert f"not deleted: {message('release')}" in done.stderr
    assert "its record is kept" in done.stderr
    assert tpux.show(job)["why"] == message("release")
    (note / "release").unlink()
    tpux.until(lambda: not list(tpux.home.glob(f"jobs/*/{job}")), "for the release to continue")


@pytest.mark.system
def test_force_leaves_out_a_release_that_blocks(tpux, note):
    job = tpux.create(CONFIG)
    tpux.until_state(job, "running")
    (note / "release").touch()
    tpux("delete", job, "-y", code=1)
    done = tpux("delete", job, "--force", "-y")
    assert f"job {int(job)} removed; these machines were not released: job-{job}" in done.stderr


@pytest.mark.system
def test_a_release_that_blocks_is_tried_again_by_the_next_delete(tpux, note):
    job = tpux.create(CONFIG)
    tpux.until_state(job, "running")
    (note / "release").touch()
    tpux("delete", job, "-y", code=1)
    calls = (note / "calls").read_text().count("release")
    assert calls == 1
    tpux("delete", job, "-y", code=1)
    assert (note / "calls").read_text().count("release") == 2
    tpux("supervisor", "stop")


@pytest.mark.system
@pytest.mark.parametrize("hook", ["check", "provision", "release"])
def test_the_supervisor_can_be_stopped_while_a_hook_blocks(tpux, note, hook):
    (note / hook).touch()
    job = tpux.create(CONFIG)
    if hook == "release":
        tpux.until_state(job, "running")
        tpux("stop", job, "--release", "--no-wait")
    tpux.until(lambda: hook in (note / "calls").read_text().split() if (note / "calls").exists() else False)
    tpux("supervisor", "stop")
    assert tpux.supervisor() is None
    (note / hook).unlink()
    tpux("supervisor", "start")
    tpux.until_state(job, "stopped" if hook == "release" else "running")
    tpux("delete", job, "-y")
    answers = (note / "interrupted").read_text().split("\n")
    assert ("provision True" in answers) == (hook == "provision")
    assert "release True" not in answers, "an answered provision is not reported to release"


@pytest.mark.system
def test_more_blocked_jobs_than_threads_stop_no_other_job(tpux, note):
    (note / "provision").touch()
    jobs = [tpux.create(CONFIG) for _ in range(17)]
    other = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", other)
    tpux.until(lambda: len(tpux.json("supervisor", "status")["blocked"]) == len(jobs))
    tpux("delete", *jobs, "-y")


@pytest.mark.system
def test_a_plugin_whose_import_blocks_stops_no_other_job(tpux):
    code = """
        import sys, time
        from pathlib import Path
        from tpux import hookimpl, sh
        while "tpux.supervisor.scheduler" in sys.modules and not Path(__file__).with_name("go").exists():
            time.sleep(0.1)

        @hookimpl
        def check(): yield sh("true")
    """
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"  # only then does a command not have the supervisor's modules
    module = tpux.plugin("tpux-note", code, entries="note = tpux_note")
    blocked = tpux.create("setup: {modules: [note]}\ncommand: {cmd: 'true'}\n")
    other = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", other)
    assert tpux.show(blocked)["state"] == "pending"
    module.with_name("go").touch()
    tpux("wait", blocked)


IMPORTING = PLUGIN + "\nblock('import')\n"


def blocked_in_import(tpux, config: str) -> tuple[list[str], Path]:
    """Return two jobs with running programs whose plugin does not return from its import in a new supervisor."""
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", IMPORTING, entries="note = tpux_note").parent
    jobs = [tpux.create(config) for _ in range(2)]
    for job in jobs:
        tpux.until(lambda job=job: tpux.output_so_far(job) == b"up\n" and tpux.events(job, "attempt-running"))
    tpux("supervisor", "stop")
    (note / "import").touch()
    tpux("supervisor", "start")
    for job in jobs:  # one imports the plugin, and the other one waits for that
        until_blocked(tpux, job, "its import")
    return jobs, note


@pytest.mark.system
def test_a_stop_ends_the_program_of_a_job_whose_plugin_does_not_return_from_its_import(tpux):
    (job, other), note = blocked_in_import(
        tpux, "setup: {modules: [note]}\ncommand: {cmd: 'trap \"echo bye; exit 0\" TERM; echo up; sleep 1000 & wait'}\n"
    )
    assert f"job {int(job)} stopped" in tpux("stop", job).stderr
    assert tpux.output(job) == b"up\nbye\n"
    reported = (tpux.directory(job) / "logs/tpu.log").read_text()
    assert "plugin note (tpux-note 1.0) has not returned from its import; stopping without it" in reported
    assert f"job {int(other)} deleted" in tpux("delete", other, "-y").stderr
    (note / "import").unlink()
    tpux("resume", job)
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up\n")
    assert f"job {int(job)} deleted" in tpux("delete", job, "-y").stderr


@pytest.mark.system
def test_machines_of_an_allocator_that_does_not_return_from_its_import_are_released_when_it_does(tpux):
    (job, other), note = blocked_in_import(tpux, PLAIN)
    assert f"job {int(job)} stopped" in tpux("stop", job).stderr
    done = tpux("delete", job, "-y", code=1)
    assert f"not deleted: {message('its import')}" in done.stderr
    assert "its record is kept" in done.stderr
    done = tpux("delete", other, "--force", "-y")
    assert f"job {int(other)} removed; these machines were not released: job-{other}" in done.stderr
    assert not tpux.events(job, "released")
    (note / "import").unlink()
    tpux.until(lambda: not list(tpux.home.glob(f"jobs/*/{job}")), "for the release")
    assert not (note / "interrupted").read_text().count("release True")


SILENT = """
import threading
from dataclasses import replace
from pathlib import Path
from tpux import HostUnreachableError, hookimpl
import tpux_local

HERE = Path(__file__).parent

class Host:
    \"\"\"A connection to a worker that does not answer while the file `silent` exists.\"\"\"
    def __init__(self, host):
        self._host, self.worker, self._closed = host, host.worker, threading.Event()
    def __getattr__(self, name):
        while (HERE / "silent").exists():
            (HERE / "waiting").touch()
            if self._closed.wait(0.05):
                raise HostUnreachableError("closed")
        return getattr(self._host, name)
    def close(self):
        self._closed.set()

@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request):
    answer = tpux_local.provision(request)
    return replace(answer, allocation=replace(answer.allocation, transport="note"))
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job): return Host(tpux_local.connect(worker, job))
"""


def test_a_stop_ends_the_wait_for_a_silent_worker(tpux):
    """Without a stop the wait would last as long as the connection, and no other turn would begin."""
    note = tpux.plugin("tpux-note", SILENT, entries="note = tpux_note").parent
    job = tpux.create("tpu: {allocation_mode: note, accelerator: v4-16}\ncommand: {cmd: 'echo up; sleep 1000'}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    (note / "silent").touch()
    tpux.until((note / "waiting").exists)
    request = tpux.popen("stop", job)
    tpux.until(lambda: tpux.events(job, "request-accepted"), "for the stop to be applied")
    (note / "silent").unlink()
    assert b"stopped" in request.communicate(timeout=120)[1]
    log = next(tpux.home.glob("supervisor/*/log")).read_text()
    assert log.count("started, process") == 1
    assert "more than a minute" not in log


RUN = """
@hookimpl
def run(command):
    block("run")
    return command
"""
RUNS = """
tpu: {allocation_mode: note, accelerator: v4-8}
setup: {modules: [note]}
command: {cmd: 'echo up; sleep 1000', grace_period: 1s}
"""


def started(tpux) -> int:
    return next(tpux.home.glob("supervisor/*/log")).read_text().count("started, process")


@pytest.mark.system
def test_a_job_whose_environment_blocks_at_the_start_can_be_deleted(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", PLUGIN + RUN, entries="note = tpux_note").parent
    (note / "run").touch()
    job = tpux.create(RUNS)
    until_blocked(tpux, job, "run")
    assert f"job {int(job)} deleted" in tpux("delete", job, "-y").stderr
    assert (note / "calls").read_text().split().count("run") == 1
    assert "release False" in (note / "interrupted").read_text()


@pytest.mark.system
def test_an_environment_that_blocks_only_while_its_job_is_stopped_is_cut_off(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", PLUGIN + RUN, entries="note = tpux_note").parent
    job = tpux.create(RUNS)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.events(job, "attempt-running"))
    (note / "run").touch()
    assert "stopped" in tpux("stop", job).stderr
    assert started(tpux) == 2
    assert (
        "has not returned from run; its steps that end the program are left out"
        in (tpux.directory(job) / "logs/tpu.log").read_text()
    )
    (note / "run").unlink()
    tpux("resume", job)
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up\n")
    tpux("delete", job, "-y")
    assert (note / "calls").read_text().split().count("run") == 4, "for the second attempt and its end"


BLOCKING = SILENT.replace("if self._closed.wait(0.05):", "if self._closed.wait(0.05) and False:").replace(
    "def connect(worker, job): return",
    "def connect(worker, job):\n    while (HERE / 'connect').exists(): threading.Event().wait(0.05)\n    return",
)
PLAIN = "tpu: {allocation_mode: note, accelerator: v4-8}\ncommand: {cmd: 'echo up; sleep 1000'}\n"


@pytest.mark.system
@pytest.mark.parametrize("request_", [("delete", "-y"), ("stop", "--release")])
def test_a_transport_that_blocks_in_connect_prevents_no_release(tpux, request_):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", BLOCKING, entries="note = tpux_note").parent
    (note / "connect").touch()
    job = tpux.create(PLAIN)
    until_blocked(tpux, job, "connect")
    events = tpux.directory(job) / "events.jsonl"
    command, option = request_
    tpux(command, job, option)
    tpux.until(lambda: not events.exists() or tpux.events(job, "released"), "for the release")


@pytest.mark.system
def test_a_stop_says_so_if_a_blocked_transport_lets_no_program_be_ended(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", BLOCKING, entries="note = tpux_note").parent
    job = tpux.create(PLAIN)
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    (note / "silent").touch()
    until_blocked(tpux, job, "connect")
    told = tpux("stop", job).stderr
    assert "plugin note (tpux-note 1.0) has not returned from connect, so programs may still run" in told
    assert f"`tpux stop {int(job)} --release` releases the machines" in told
    (note / "silent").unlink()
    tpux("resume", job)
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up\n")
    tpux("delete", job, "-y")


DETECTOR = """
import time
from pathlib import Path
from tpux import hookimpl, sh

HERE = Path(__file__).parent

def block(hook):
    while (HERE / hook).exists():
        time.sleep(0.01)

block("import")
@hookimpl
def classify_failure(): block("classify_failure")
@hookimpl
def solve():
    block("solve")
    yield sh("true")
"""


@pytest.mark.system
@pytest.mark.parametrize("hook", ["classify_failure", "import"])
def test_a_detector_that_blocks_holds_no_job_that_has_not_chosen_it(tpux, hook):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    note = tpux.plugin("tpux-note", DETECTOR, entries="note = tpux_note").parent
    job = tpux.create("job: {rule: pass}\ncommand: {cmd: 'until [ -e ~/end ]; do sleep 0.1; done; exit 3'}\n")
    tpux.until(lambda: tpux.show(job)["state"] == "running", "for the program to run")
    (note / hook).touch()
    next(tpux.directory(job).glob("machines/*/worker-0/")).joinpath("end").touch()
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert shown["failure"]["evidence"].startswith("exit code 3")
    assert shown["failure"]["hint"].endswith("not asked, because broken: note (tpux plugins list)")
    what = "its import" if hook == "import" else hook
    message = f"plugin note (tpux-note 1.0) has not returned from {what} within 30 s"
    whys = [event["why"] for event in tpux.events(job, "waiting") if message in event["why"]]
    assert whys[-1] == f"{message}; continuing without it"
