"""`tpux resume` and `tpux rerun` with another config, or with other values of the job's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import build_wheel
from tests.test_environment import WEATHER

CONFIG = "command: {cmd: 'echo first; exit 3', grace_period: 1s}\n"


def failed(tpux, text=CONFIG, *overrides):
    job = tpux.create(text, *overrides)
    tpux("wait", job, code=100)
    return job


def test_a_resume_with_a_value_changes_it_and_keeps_the_others(tpux):
    job = failed(tpux, "command: {cmd: 'echo $A$B; exit 3'}\n", "command.cmd=A=1; B=2; echo $A$B; exit 3")
    before = tpux.show(job)
    tpux("resume", job, "command.cmd=echo fixed")
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"fixed\n"
    assert tpux.show(job)["name"] == before["name"]
    failed_again = tpux("rerun", job, "command.grace_period=5s")
    assert "rerun requested" in failed_again.stderr
    tpux("wait", job)
    assert tpux.output(job, attempt=3) == b"fixed\n", "an earlier change stays"


def test_a_rerun_with_another_file(tpux):
    job = failed(tpux)
    fixed = tpux.config("job: {name: better}\ncommand: {cmd: 'echo $TPUX_RESUME $GREETING'}\n", "fixed.yaml")
    tpux("rerun", job, "--config", fixed, "command.cmd=echo changed twice")
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"changed twice\n"
    assert tpux.show(job)["name"] == "better"
    [changed] = tpux.events(job, "config-changed")
    assert changed["name"] == "better"
    assert changed["changed"] == ["command.cmd", "command.grace_period", "job.name"]
    assert "config changed: command.cmd, command.grace_period, job.name\n" in tpux("show", job, "--events").stdout


def test_an_invalid_config_changes_nothing(tpux):
    job = failed(tpux)
    done = tpux("resume", job, "command.cmdd=true", code=2)
    assert "argument 'command.cmdd=true': unknown key" in done.stderr
    assert tpux.show(job)["state"] == "failed"
    assert not list(tpux.directory(job).glob("configs/*"))
    done = tpux("resume", job, "--config", tpux.config("command: {}\n", "empty.yaml"), code=2)
    assert "empty.yaml:1:" in done.stderr


def test_one_job_only(tpux):
    first, second = failed(tpux), failed(tpux)
    assert "for one job, not for 2" in tpux("resume", first, second, "command.cmd=true", code=2).stderr
    assert "for one job, not for 2" in tpux("rerun", "--state", "failed", "command.cmd=true", code=2).stderr


def test_the_config_of_a_running_job_cannot_change(tpux):
    job = tpux.create("command: {cmd: sleep 100, grace_period: 0s}\n")
    tpux.until_state(job, "running")
    assert f"stop it first: tpux stop {int(job)}" in tpux("resume", job, "command.cmd=true", code=2).stderr


@pytest.mark.system
def test_the_machines_that_are_held_cannot_change(tpux):
    job = failed(tpux, CONFIG, "tpu.accelerator=v4-8")
    done = tpux("resume", job, "tpu.accelerator=v4-16", "local.preempt_after=1h", code=2)
    assert f"job {int(job)} still holds its machines, and local.preempt_after, tpu.accelerator would" in done.stderr
    other = ["tpu.allocation_mode=queued-resources", "tpu.accelerator=v4-8", "tpu.zone=us-central2-b"]
    for added, named in ((other[:1], "tpu.allocation_mode"), (other, "tpu.allocation_mode, tpu.zone")):
        done = tpux("resume", job, "tpu.accelerator=v4-8", *added, code=2)
        assert f"still holds its machines, and {named} would describe other ones" in done.stderr
    tpux("stop", job, "--release")
    tpux("resume", job, "tpu.accelerator=v4-16", "command.cmd=echo $TPUX_WORKER")
    tpux("wait", job)
    assert [tpux.output(job, worker, attempt=2) for worker in (0, 1)] == [b"0\n", b"1\n"]


@pytest.mark.system
def test_the_jobs_own_copies_of_files_are_used(tpux):
    tpux.plugin("tpux-note", NOTE, entries="note = tpux_note")
    (tpux.work / "note.txt").write_text("first")
    job = failed(tpux, "setup: {modules: [note]}\nnote: {file: note.txt}\ncommand: {cmd: exit 3}\n")
    (tpux.work / "note.txt").unlink()
    tpux("resume", job, "command.cmd=cat note")
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"first"
    (tpux.work / "note.txt").write_text("second")
    tpux("rerun", job, "--config", "job.yaml", "command.cmd=cat note")
    tpux("wait", job)
    assert tpux.output(job, attempt=3) == b"second"


@pytest.mark.system
def test_a_new_config_replaces_one_that_is_no_longer_valid(tpux):
    module = tpux.plugin("tpux-note", NOTE, entries="note = tpux_note")
    (tpux.work / "note.txt").write_text("first")
    job = failed(tpux, "setup: {modules: [note]}\nnote: {file: note.txt}\ncommand: {cmd: exit 3}\n")
    tpux("stop", job, "--release")
    tpux("supervisor", "stop")
    shutil.rmtree(module.parent)
    tpux("resume", job, "--config", tpux.config("command: {cmd: echo fixed}\n", "fixed.yaml"))
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"fixed\n"


def test_a_config_whose_request_cannot_be_written_is_removed(tpux):
    job = failed(tpux)
    tpux("supervisor", "stop")
    (tpux.directory(job) / "requests").write_text("")
    tpux("resume", job, "command.cmd=echo fixed", code=1)
    assert not list(tpux.directory(job).glob("configs/*"))


NOTE = """
    from tpux import Section, hookimpl, put, sh
    from tpux.fields import LocalFile

    class NoteSection(Section):
        file: LocalFile
        '''The note.'''

    @hookimpl
    def config_section():
        return NoteSection

    @hookimpl
    def check():
        yield sh("test -e note")

    @hookimpl
    def setup(config):
        yield put(config.file, "~/note")
"""


@pytest.mark.system
def test_secrets_are_read_in_the_shell_and_those_of_the_former_config_are_removed(tpux):
    tpux.env["TOKEN"] = "opensesame"
    job = failed(tpux, "command: {cmd: 'echo ${env:TOKEN}; exit 3'}\n")
    del tpux.env["TOKEN"]
    tpux("resume", job, "command.cmd=echo ${env:TOKEN} ${env:NEW}", code=2)
    tpux.env |= {"TOKEN": "opensesame", "NEW": "abracadabra"}
    tpux("resume", job, "command.cmd=echo ${env:TOKEN} ${env:NEW}")
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"opensesame abracadabra\n"
    tpux.until(lambda: not list(tpux.directory(job).rglob("secrets.json")))
    for path in tpux.directory(job).rglob("*.json"):
        assert b"abracadabra" not in path.read_bytes()


@pytest.mark.system
def test_what_was_resolved_stays_while_the_machines_are_held(tpux):
    tpux.plugin("tpux-weather", WEATHER, entries="weather = tpux_weather")
    tpux.env["SKY"] = "blue"
    job = failed(tpux, "setup: {modules: [weather]}\ncommand: {cmd: 'cat sky; exit 3'}\n")
    tpux.env["SKY"] = "grey"
    assert "note:" not in tpux("resume", job, "command.cmd=cat sky").stderr
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"blue\n"
    tpux("stop", job, "--release")
    assert "note: weather.sky: blue -> grey" in tpux("rerun", job, "command.grace_period=2s").stderr
    tpux("wait", job)
    assert tpux.output(job, attempt=3) == b"grey\n"


@pytest.mark.system
@pytest.mark.parametrize("again", [1, 2])
def test_a_supervisor_that_is_killed_at_any_moment_changes_it_once(tpux, again):
    job = failed(tpux)
    tpux("supervisor", "stop")
    tpux.until(lambda: tpux.supervisor() is None)
    process = tpux.popen("resume", job, "command.cmd=echo fixed")
    for _ in range(again):
        tpux.until(lambda: tpux.supervisor() is not None or process.poll() is not None)
        if (pid := tpux.supervisor()) is not None:
            os.kill(pid, signal.SIGKILL)
            tpux.until(lambda: tpux.supervisor() is None)
    process.communicate()
    tpux("wait", job)
    assert tpux.output(job, attempt=2) == b"fixed\n"
    assert len(tpux.events(job, "config-changed")) == 1
    config = tpux.events(job, "config-changed")[0]["config"]
    assert json.loads((tpux.directory(job) / str(config) / "resolved.json").read_text())["config"]["command"] == {
        "cmd": "echo fixed",
        "grace_period": "1s",
    }


class Quiet(SimpleHTTPRequestHandler):
    """Serves the files of a directory, and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path) -> Iterator[str]:
    """Serve two package indexes, `one` and `two`, with other builds of the same version; return their server."""
    for name in ("one", "two"):
        (tmp_path / f"indexes/{name}/tpux-tiny").mkdir(parents=True)
        build_wheel(tmp_path / f"indexes/{name}/tpux-tiny", "tpux-tiny", f"INDEX = {name!r}\n", "")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "indexes"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.system
def test_a_resume_with_another_package_index_builds_the_environment_anew(tpux, index):
    (tpux.work / "requirements.txt").write_text("tpux-tiny==1.0\n")
    tpux.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), tpux.env["PATH"]])
    text = f"""
job: {{env_type: venv}}
tpu: {{keep_on_failure: 1h}}
venv: {{requirements_file: requirements.txt, index_url: '{index}/one'}}
command: {{cmd: "python -c 'import tpux_tiny; print(tpux_tiny.INDEX)'; exit 3"}}
"""
    job = failed(tpux, text)
    tpux("resume", job, f"venv.index_url={index}/two")
    tpux("wait", job, code=100)
    assert [tpux.output(job, attempt=attempt) for attempt in (1, 2)] == [b"one\n", b"two\n"]
