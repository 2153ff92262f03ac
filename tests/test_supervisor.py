"""One supervisor per user: started when needed, never two at once, and it exits when all jobs are done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpux.cli import supervisor as supervisor_command
from tpux.supervisor import client

GATED = "command: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done; echo down'}\n"


@pytest.fixture(autouse=True)
def own_process(tpux):
    """Start supervisors as users do, not from the fork server."""
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"


def supervisors(tpux) -> list[int]:
    """Return all supervisor processes of this TPUX_HOME, with or without the lock."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            matches = b"tpux.supervisor" in (path / "cmdline").read_bytes()
            if matches and f"TPUX_HOME={tpux.home}\0".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [pid for pid in found if tpux.alive(pid)]


def gated(tpux) -> tuple[str, Path]:
    go = tpux.work / "go"
    job = tpux.create(GATED.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n" and tpux.supervisor())
    return job, go


@pytest.mark.system
def test_the_supervisor_ends_when_no_job_runs(tpux):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    assert tpux.json("supervisor", "status")["jobs"] == [job]
    go.touch()
    tpux("wait", job)
    tpux.until(lambda: not tpux.alive(pid))
    assert tpux.supervisor() is None
    tpux("list")
    tpux.until(lambda: supervisors(tpux) == [], "since no job is active")


def test_concurrent_commands_start_one_supervisor(tpux):
    config = tpux.config(GATED.replace("GO", str(tpux.work / "go")))
    creates = [tpux.popen("create", config) for _ in range(4)]
    ids = sorted(process.communicate(timeout=60)[0].decode().strip() for process in creates)
    assert ids == ["1", "2", "3", "4"]
    tpux.until(lambda: all(tpux.output_so_far(job.zfill(6)) for job in ids))
    tpux.until(lambda: len(supervisors(tpux)) == 1, "for the others to find the lock held")
    (tpux.work / "go").touch()
    tpux("wait", *ids)
    assert [len(tpux.events(job.zfill(6), "attempt-started")) for job in ids] == [1, 1, 1, 1]


@pytest.mark.system
def test_stopping_the_supervisor_leaves_the_program_running(tpux):
    job, go = gated(tpux)
    tpux("supervisor", "stop")
    tpux.until(lambda: supervisors(tpux) == [])
    for command in (["list"], ["show", job], ["logs", job], ["supervisor", "status"]):
        tpux(*command)
    assert supervisors(tpux) == [], "a command that only reads does not start it again after a stop"
    go.touch()
    assert tpux.show(job)["state"] == "running"
    tpux("wait", job)
    assert tpux.output(job) == b"up\ndown\n"
    assert len(tpux.events(job, "attempt-started")) == 1


def test_a_supervisor_that_waits_for_the_lock_does_not_outlive_a_stop(tpux):
    """It would have the environment of before the stop, and the user may have changed it before the next start."""
    _, go = gated(tpux)
    environment = {**os.environ, **tpux.env, "TPUX_HOME": str(tpux.home)}
    command = [sys.executable, "-m", "tpux.supervisor"]
    with subprocess.Popen(command, env=environment, cwd="/", stderr=subprocess.PIPE, text=True) as waiting:
        tpux("supervisor", "stop")
        log = waiting.communicate(timeout=60)[1]
    assert (waiting.returncode, "started" in log) == (0, False), log
    go.touch()
    tpux("supervisor", "start")


@pytest.mark.system
def test_a_start_that_finds_a_supervisor_which_is_ending_is_not_lost(tpux):
    code = """
        from pathlib import Path
        import time
        from tpux import hookimpl, sh

        @hookimpl
        def check():
            Path(__file__).with_name("called").touch()
            while not Path(__file__).with_name("go").exists():
                time.sleep(0.01)
            yield sh("true")
    """
    site = tpux.plugin("tpux-note", code, entries="note = tpux_note").parent
    job = tpux.create("setup: {modules: [note]}\ncommand: {cmd: 'true'}\n")
    tpux.until((site / "called").exists)
    stop = tpux.popen("supervisor", "stop")
    tpux.until(lambda: "ending, stopped by the user" in tpux.log())
    tpux("supervisor", "start")
    (site / "go").touch()
    assert stop.wait() == 0
    tpux.until_state(job, "succeeded")  # `wait` would start a supervisor


@pytest.mark.system
def test_logs_reports_that_the_supervisor_was_stopped(tpux):
    job, go = gated(tpux)
    follow = tpux.popen("logs", "-f", job)
    assert follow.stdout.readline() == b"[0] up\n"
    tpux("supervisor", "stop")
    for line in follow.stderr:
        if b"supervisor start" in line:
            break
    assert "supervisor running, process" in tpux("supervisor", "start").stderr
    assert tpux.supervisor() is not None, "it runs when the command returns"
    go.touch()
    out, _ = follow.communicate(timeout=60)
    assert (follow.returncode, out) == (0, b"[0] down\n")


@pytest.mark.system
def test_status_waits_for_a_supervisor_that_is_just_starting(tpux, monkeypatch):
    job, go = gated(tpux)
    tpux.kill_supervisor()
    asked, status = [], client.status

    def status_while_it_starts(store):
        asked.append(store)
        if len(asked) == 3:
            tpux("list")
        return status(store)

    for name, value in tpux.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "status", status_while_it_starts)
    monkeypatch.setattr(supervisor_command, "STARTING_TIMEOUT", 60)
    shown = CliRunner().invoke(supervisor_command.app, ["status"])
    assert shown.output.startswith("supervisor running, process "), shown.output
    go.touch()
    tpux("wait", job)


@pytest.mark.system
def test_any_command_restarts_a_killed_supervisor(tpux):
    job, go = gated(tpux)
    tpux.kill_supervisor()
    assert tpux.json("supervisor", "status")["pid"] is None
    tpux("list")
    tpux.until(tpux.supervisor)
    go.touch()
    tpux("wait", job)


@pytest.mark.system
def test_a_supervisor_that_hangs_keeps_its_lock(tpux):
    """The lock is released only when its process ends, so two supervisors never run at once."""
    job, go = gated(tpux)
    pid = tpux.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        tpux("list")
        tpux("supervisor", "start")
        tpux("create", "job.yaml")
        tpux.until(lambda: supervisors(tpux) == [pid])
    finally:
        os.kill(pid, signal.SIGCONT)
    go.touch()
    tpux("wait", job, "2")


@pytest.mark.system
def test_sigterm_ends_the_supervisor_and_leaves_the_program_running(tpux):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    tpux.until(lambda: not tpux.alive(pid))
    go.touch()
    tpux("wait", job)
    assert tpux.output(job) == b"up\ndown\n"


def test_a_failing_plugin_does_not_stop_other_jobs(tpux):
    tpux.plugin(
        "tpux-bad",
        """
        from tpux import Released, hookimpl
        @hookimpl
        def provision(request): return 1 / 0
        @hookimpl
        def release(request): return Released()
        """,
        entries="bad = tpux_bad",
    )
    job = tpux.create("tpu: {allocation_mode: bad}\ncommand: {cmd: 'true'}\n")
    other = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", other)
    tpux.until(lambda: "ZeroDivisionError" in tpux.log())
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["kind"] == "plugin"


@pytest.mark.system
def test_the_supervisor_ends_when_its_home_is_removed(tpux):
    gated(tpux)
    pid = tpux.supervisor()
    assert pid is not None
    shutil.rmtree(tpux.home, ignore_errors=True)
    tpux.until(lambda: not tpux.alive(pid))


@pytest.mark.system
def test_a_setup_that_raised_is_run_again(tpux):
    """A generator that raised is exhausted; resuming it must not look like normal completion."""
    tpux.plugin(
        "tpux-shaky",
        f"""
        from pathlib import Path
        from tpux import hookimpl, sh
        @hookimpl
        def check():
            yield sh("test -e ready")
        @hookimpl
        def setup():
            if not (mark := Path({str(tpux.work)!r}, "raised")).exists():
                mark.touch()
                raise RuntimeError("failed the first time")
            yield sh("touch ready")
        """,
        entries="shaky = tpux_shaky",
    )
    tpux("run", tpux.config("setup: {modules: [shaky]}\ncommand: {cmd: test -e ready}\n"))
    assert "failed the first time" in tpux.log()


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


@pytest.mark.system
def test_the_supervisor_is_started_with_a_short_list_of_variables(tpux):
    kept = {"LANG": "C.UTF-8", "LC_TIME": "C", "TZ": "UTC", "https_proxy": "http://me:secret@proxy:1", "TPUX_X": "1"}
    kept |= {"SSL_CERT_FILE": "/certs", "CLOUDSDK_CONFIG": str(tpux.work), "SSH_AUTH_SOCK": str(tpux.work / "agent")}
    left_out = {"AWS_SECRET_ACCESS_KEY": "s", "PYTHONSTARTUP": "x", "JAX_PLATFORMS": "cpu", "LANGUAGE": "de"}
    left_out |= {"GOOGLE_CLOUD_PROJECT": "p", "CLOUDSDK_CORE_PROJECT": "p", "TPUX_GCP_ENDPOINT": "http://x"}
    of_a_job = {"TPUX_RUN_ID": "r", "TPUX_JOB_ID": "1", "TPUX_SECRET_TOKEN": "s", "TPUX_RUN_HOME": "/h"}
    tpux.env |= kept | left_out | of_a_job
    _, go = gated(tpux)
    pid = tpux.supervisor()
    assert pid is not None
    environment = environment_of(pid)
    assert environment.items() >= kept.items()
    assert environment.keys().isdisjoint(left_out | of_a_job)
    assert environment["TPUX_HOME"] == str(tpux.home)
    shown = tpux.json("supervisor", "status")
    assert shown["environment"].items() >= (kept | {"https_proxy": "http://***@proxy:1"}).items()
    assert shown["differs_from_shell"] == []
    assert "  TZ=UTC\n" in tpux("supervisor", "status").stdout
    assert "secret" not in tpux("supervisor", "status").stdout
    assert next(tpux.home.glob("supervisor/*/lock")).stat().st_mode & 0o77 == 0
    go.touch()


@pytest.mark.system
def test_a_command_from_another_environment_warns_once(tpux):
    tpux.env["TZ"] = "UTC"
    _, go = gated(tpux)
    assert tpux("list").stderr == ""
    tpux.env |= {"TZ": "Asia/Tokyo", "ALL_PROXY": "socks5://127.0.0.1:1"}
    assert "warning: this shell's ALL_PROXY, TZ differ from the supervisor's" in tpux("list").stderr
    assert tpux("list").stderr == ""
    tpux.env["TZ"] = "Europe/Rome"
    assert "this shell's ALL_PROXY, TZ differ" in tpux("list").stderr, "another difference"
    status = tpux("supervisor", "status").stdout
    assert "TZ=UTC (differs in this shell)" in status
    assert "ALL_PROXY is not set (it is in this shell)" in status
    tpux.env["TPUX_RUN_ID"] = "r"
    tpux.env["TZ"] = "Asia/Seoul"
    assert tpux("list").stderr == "", "a program's environment always differs"
    del tpux.env["TPUX_RUN_ID"]
    tpux("supervisor", "stop")
    tpux("supervisor", "start")
    tpux.until(tpux.supervisor)
    assert tpux("list").stderr == ""
    go.touch()
    tpux("wait", "1")
