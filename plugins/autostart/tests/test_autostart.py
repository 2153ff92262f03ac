"""`tpux supervisor install` and `uninstall`, with stand-ins for systemctl, loginctl and crontab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEMCTL = """
import os, pathlib, re, shlex, subprocess, sys
here = pathlib.Path(__file__).parent
units = pathlib.Path(os.environ["XDG_CONFIG_HOME"]) / "systemd" / "user"
assert sys.argv[1] == "--user"
command, *rest = [word for word in sys.argv[2:] if not word.startswith("--")]
with (here / "calls").open("a") as file:
    print(*sys.argv[1:], file=file)
if (here / "no-systemd").exists():
    sys.exit("Failed to connect to bus")
if command in {"enable", "disable"}:
    assert (units / rest[0]).exists() or command == "disable"
if command == "start":
    unit = dict(re.findall(r"^([A-Za-z]+)=(.*)$", (units / rest[0]).read_text(), re.M))
    assert (unit["KillMode"], unit["Restart"]) == ("process", "on-failure")
    argv = shlex.split(unit["ExecStart"].replace("%%", "%").replace("$$", "$"))
    loop = 'until env -i "$@"; do sleep 0.2; done'  # Restart=on-failure
    subprocess.Popen(["sh", "-c", loop, "systemd", *argv], start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})
"""
LOGINCTL = """
import pathlib, sys
here = pathlib.Path(__file__).parent
assert sys.argv[1:] == ["enable-linger"]
sys.exit("Access denied" if (here / "no-linger").exists() else 0)
"""
CRONTAB = """
import pathlib, sys
table = pathlib.Path(__file__).parent / "table"
if sys.argv[1] == "-l":
    sys.exit("no crontab for me") if not table.exists() else print(table.read_text(), end="")
else:
    assert sys.argv[1] == "-"
    table.write_text(sys.stdin.read())
"""
GATED = "command: {cmd: 'echo up; until [ -e GO ]; do sleep 0.05; done; echo down'}\n"


@pytest.fixture
def stand_ins(tpux, tmp_path) -> Path:
    """Put the stand-ins before all other programs; return their directory."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, code in {"systemctl": SYSTEMCTL, "loginctl": LOGINCTL, "crontab": CRONTAB}.items():
        (directory / name).write_text(f"#!{sys.executable}\n{code}")
        (directory / name).chmod(0o755)
    tpux.env |= {"PATH": f"{directory}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path / "config 100%")}
    return directory


def gated(tpux) -> tuple[str, Path]:
    go = tpux.work / "go"
    job = tpux.create(GATED.replace("GO", str(go)))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    return job, go


def lock_of(tpux) -> str:
    """Return what the lock file says about its holder, without a command that could start one."""
    return next(tpux.home.glob("supervisor/*/lock")).read_text()


@pytest.mark.system
def test_systemd_restarts_a_supervisor_that_is_killed(tpux, stand_ins):
    done = tpux("supervisor", "install")
    assert "the supervisor is started at boot and after a crash by systemd (tpux-supervisor-" in done.stderr
    assert "warning" not in done.stderr
    job, go = gated(tpux)
    status = tpux("supervisor", "status").stdout
    assert "started at boot and after a crash by systemd (tpux-supervisor-" in status
    pid = tpux.supervisor()
    before = lock_of(tpux)
    os.kill(pid, signal.SIGKILL)
    tpux.until(lambda: lock_of(tpux) != before, "for a supervisor that no command has started")
    go.touch()
    tpux.until_state(job, "succeeded")
    assert tpux.output(job) == b"up\ndown\n"
    assert tpux.json("supervisor", "status")["installed"] == "systemd"


def test_install_lets_systemd_take_over_a_supervisor_that_runs(tpux, stand_ins):
    job, go = gated(tpux)
    pid = tpux.supervisor()
    tpux("supervisor", "install")
    tpux.until(lambda: tpux.supervisor() not in {None, pid})
    assert "start --no-block" in (stand_ins / "calls").read_text()
    go.touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


def test_uninstall_removes_the_unit(tpux, stand_ins):
    units = Path(tpux.env["XDG_CONFIG_HOME"]) / "systemd" / "user"
    tpux("supervisor", "install")
    assert len(list(units.iterdir())) == 1
    assert "from now on only commands start the supervisor" in tpux("supervisor", "uninstall").stderr
    assert list(units.iterdir()) == []
    assert tpux.json("supervisor", "status")["installed"] is None
    assert "the supervisor is not installed" in tpux("supervisor", "uninstall").stderr
    calls = (stand_ins / "calls").read_text()
    tpux("run", tpux.config("command: {cmd: 'true'}\n"))
    assert (stand_ins / "calls").read_text() == calls


def test_without_linger_the_user_is_told(tpux, stand_ins):
    (stand_ins / "no-linger").touch()
    assert "warning: systemd ends it with your last login" in tpux("supervisor", "install").stderr


@pytest.mark.system
def test_cron_starts_a_supervisor_for_a_job_that_needs_one(tpux, stand_ins):
    (stand_ins / "no-systemd").touch()
    (stand_ins / "table").write_text("0 1 * * * backup\n")
    assert "after a crash by cron, within 5 minutes" in tpux("supervisor", "install").stderr
    tpux("supervisor", "install")  # again: replaces its lines
    first, boot, often = (stand_ins / "table").read_text().splitlines()
    assert first == "0 1 * * * backup"
    assert boot.startswith("@reboot sh ")
    command = often.removeprefix("*/5 * * * * ").replace("\\%", "%")
    job, go = gated(tpux)
    tpux.kill_supervisor()
    subprocess.run(["/bin/sh", "-c", command], env={"PATH": "/usr/bin:/bin"}, check=True)
    tpux.until(tpux.supervisor)
    go.touch()
    tpux("wait", job)
    tpux.until(lambda: lock_of(tpux).strip() == "", "for the supervisor to end")
    before = lock_of(tpux)
    subprocess.run(["/bin/sh", "-c", command], env={"PATH": "/usr/bin:/bin"}, check=True)
    assert lock_of(tpux) == before, "no job needs one"
    tpux("supervisor", "uninstall")
    assert (stand_ins / "table").read_text() == "0 1 * * * backup\n"


def test_a_machine_with_neither_is_an_error(tpux, stand_ins):
    (stand_ins / "no-systemd").touch()
    (stand_ins / "crontab").unlink()
    tpux.env["PATH"] = str(stand_ins)
    assert "neither systemd for users nor crontab" in tpux("supervisor", "install", code=1).stderr


def test_run_suggests_the_installation_once(tpux, stand_ins):
    code = """
        from dataclasses import replace
        from tpux import hookimpl
        import tpux_local

        @hookimpl
        def tpu_section(): return tpux_local.tpu_section()
        @hookimpl
        def provision(request):
            ready = tpux_local.provision(request)
            return replace(ready, allocation=replace(ready.allocation, transport="local"))
        @hookimpl
        def inspect(request): return tpux_local.inspect(request)
        @hookimpl
        def release(request): return tpux_local.release(request)
    """
    tpux.plugin("tpux-cloud", code, entries="cloud = tpux_cloud")
    path = tpux.config("tpu: {allocation_mode: cloud}\ncommand: {cmd: 'true'}\n")
    assert "tpux supervisor install" in tpux("run", path).stderr
    assert "tpux supervisor install" not in tpux("run", path).stderr
