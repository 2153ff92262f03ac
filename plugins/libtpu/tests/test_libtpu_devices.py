"""What holds a TPU: diagnose finds it, solve ends it. Real processes hold device nodes, for root those of /dev/null."""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpux import Finding
from tpux_libtpu import LibtpuSection
from tpux_libtpu.devices import device_step, findings_of, what_holds
from tpux_testing import run_job

HOLD = "import os, sys, signal; [os.open(path, 0) for path in sys.argv[1:]]; print('held', flush=True); signal.pause()"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def hold() -> Iterator[Start]:
    """Return a function that starts a process that has files open."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*paths: Path, ignore_term: bool = False, **env: str) -> subprocess.Popen[bytes]:
        code = ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignore_term else "") + HOLD
        command = [sys.executable, "-c", code, *map(str, paths)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **env})
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """Return the home directory of a worker with two devices, a lock file and logs."""
    (tmp_path / "tmp/tpu_logs").mkdir(parents=True)
    (tmp_path / "tmp/tpu_logs/tpu_driver.INFO").write_text("log")
    (tmp_path / "tmp/libtpu_lockfile").touch()
    for number in range(2):
        if os.geteuid() == 0:
            os.mknod(tmp_path / f"accel{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        else:
            (tmp_path / f"accel{number}").touch()
    return tmp_path


def section_of(worker: Path, full: int = 101) -> LibtpuSection:
    section = LibtpuSection(devices=[f"{worker}/accel*"], directory=f"{worker}/tmp")
    return section.model_copy(update={"full_percent": full})  # 101: a disk that is never full


def run(worker: Path, mode: str, *, full: int = 101, force: bool = False) -> subprocess.CompletedProcess[str]:
    step = device_step(mode, section_of(worker, full), force=force)
    return subprocess.run(["sh", "-e", "-c", step.script], cwd=worker, capture_output=True, text=True, timeout=60)


def diagnose(worker: Path, full: int = 101, own: str = "s-u-000008") -> list[Finding]:
    listed = run(worker, "list", full=full)
    assert listed.returncode == 0, listed.stderr
    return findings_of(listed.stdout, section_of(worker, full), "tpux solve 7", own)


def test_only_what_ended_runs_of_this_home_have_left_is_ended(worker: Path, hold: Start) -> None:
    runs, home = worker / ".tpux/runs", str(worker)
    for run_id in ("s-u-000007-w0/1/command", "s-u-000008-w0/1/command"):
        (runs / run_id).mkdir(parents=True)
        (runs / run_id / "lock").touch()
    left = hold(worker / "accel0", TPUX_RUN_ID="s-u-000007-w0/1/command", TPUX_RUN_HOME=home)
    in_container = {"TPUX_CONTAINER_RUN_ID": "s-u-000008-w0/1/command", "TPUX_CONTAINER_RUN_HOME": home}
    with (runs / "s-u-000008-w0/1/command/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        live = hold(worker / "accel1", TPUX_RUN_ID="s-u-000008-w0/1/command", TPUX_RUN_HOME=home)
        contained = hold(worker / "accel1", **in_container)
        found = {one.message.partition(" holds")[0].split()[1]: one for one in diagnose(worker)[1:]}
        assert (found[str(contained.pid)].level, found[str(contained.pid)].hint) == ("ok", "")
        assert found[str(left.pid)].level == "warning"
        assert "s-u-000007-w0/1/command has ended and left it behind" in found[str(left.pid)].message
        assert found[str(left.pid)].hint == "tpux solve 7"
        assert found[str(live.pid)].level == "ok"
        [of_other] = [one for one in diagnose(worker, own="s-u-000007") if f"process {live.pid} " in one.message]
        assert (of_other.level, of_other.hint) == ("warning", "wait until job 8 has ended, or stop it: tpux stop 8")
        assert "which is running and is not a run of this job" in of_other.message
        for own, elsewhere in (("x-u-000008", True), ("s-v-000008", True), ("", False)):
            [one] = [one for one in diagnose(worker, own=own) if f"process {live.pid} " in one.message]
            hint = "wait until it has ended, or ask its owner: it is a job of another user or store (TPUX_HOME)"
            assert (one.level, one.hint) == (("warning", hint) if elsewhere else ("ok", ""))
        repaired = run(worker, "repair")
    assert left.wait(timeout=30) == -15
    assert (live.poll(), contained.poll()) == (None, None)
    assert repaired.returncode == 1
    assert any(f"process {pid} (python" in repaired.stderr for pid in (live.pid, contained.pid))
    assert "it belongs to a program that is running, s-u-000008-w0/1/command" in repaired.stderr
    assert (worker / "tmp/libtpu_lockfile").exists(), "its device is in use"

    (runs / "s-u-000008-w0/1/command/exit").write_text("0")  # from now on it has ended too
    repaired = run(worker, "repair")
    assert (repaired.returncode, repaired.stderr) == (0, "")
    assert (live.wait(timeout=30), contained.wait(timeout=30)) == (-15, -15)
    assert not (worker / "tmp/libtpu_lockfile").exists()
    assert (worker / "tmp/tpu_logs/tpu_driver.INFO").exists(), "the disk is not full"


def test_what_asks_jax_for_tpux_diagnose_is_no_program(worker: Path, hold: Start) -> None:
    name = "s-u-000008-w0/2/diagnose-1f2e-jax"
    (worker / ".tpux/runs" / name).mkdir(parents=True)
    with (worker / ".tpux/runs" / name / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asking = hold(worker / "accel0", TPUX_RUN_ID=name, TPUX_RUN_HOME=str(worker))
        for own in ("s-u-000008", "s-u-000009", ""):
            [found] = [one for one in diagnose(worker, own=own) if f"process {asking.pid} " in one.message]
            assert (found.level, found.hint) == ("warning", "tpux solve 7 ends it")
            assert found.message.endswith("tpux diagnose asks JAX for its devices, or was interrupted then")
        preview = run(worker, "preview").stdout.splitlines()
        assert len(preview) == 2
        assert preview[0].startswith(f"would end process {asking.pid} (")
        assert preview[1].startswith("would remove the lock file ")
        assert run(worker, "repair").returncode == 0
    assert asking.wait(timeout=30) == -15


@pytest.fixture
def container() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Return a function that moves a process into the cgroup of a container, named as docker does."""
    hierarchy = Path("/sys/fs/cgroup/pids") if Path("/sys/fs/cgroup/pids").is_dir() else Path("/sys/fs/cgroup")
    directory = hierarchy / f"docker-{os.urandom(32).hex()}.scope"
    moved: list[subprocess.Popen[bytes]] = []

    def move(process: subprocess.Popen[bytes]) -> None:
        (directory / "cgroup.procs").write_text(str(process.pid))
        moved.append(process)

    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield move
    for process in moved:  # a cgroup with processes cannot be removed
        process.kill()
        process.wait()
    directory.rmdir()


def test_what_docker_exec_starts_belongs_to_the_run_of_its_container(
    worker: Path, hold: Start, container: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """It does not have the variables that mark the program."""
    directory = worker / ".tpux/runs/s-u-000008-w0/1/command"
    directory.mkdir(parents=True)
    (directory / "lock").touch()
    marks = {"TPUX_CONTAINER_RUN_ID": "s-u-000008-w0/1/command", "TPUX_CONTAINER_RUN_HOME": str(worker)}
    program, executed, other = hold(worker / "tmp", **marks), hold(worker / "accel0"), hold(worker / "accel1")
    container(program)
    container(executed)
    with (directory / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = {one.message.partition(" (")[0]: one for one in diagnose(worker)[1:]}
        assert found[f"process {executed.pid}"].level == "ok"
        assert found[f"process {executed.pid}"].message.endswith(
            "it belongs to s-u-000008-w0/1/command, which is running"
        )
        assert found[f"process {other.pid}"].message.endswith("tpux did not start it")
    assert run(worker, "repair").returncode == 1
    assert (executed.wait(timeout=30), other.poll()) == (-15, None), "its run has ended"


def test_processes_of_others_are_ended_only_if_that_is_forced(worker: Path, hold: Start) -> None:
    elsewhere = {"TPUX_RUN_ID": "s-u-000007-w0/1/command", "TPUX_RUN_HOME": "/home/another"}
    wrong = {"TPUX_RUN_ID": "../../x", "TPUX_RUN_HOME": str(worker)}
    others = [hold(worker / "accel0"), hold(worker / "accel0", **elsewhere), hold(worker / "accel1", **wrong)]
    messages = [one.message for one in diagnose(worker) if one.hint == "tpux solve 7 --force ends it"]
    assert len(messages) == len(others)
    refused = run(worker, "repair")
    assert refused.returncode == 1
    assert "set solve.force, or use tpux solve --force, to end it" in refused.stderr
    assert all(process.poll() is None for process in others)
    assert run(worker, "repair", force=True).returncode == 0
    assert {process.wait(timeout=30) for process in others} == {-15}


def test_the_preview_says_what_would_be_done_and_does_nothing(worker: Path, hold: Start) -> None:
    (worker / ".tpux/runs/s-u-000007-w0/1/command").mkdir(parents=True)
    (worker / ".tpux/runs/s-u-000007-w0/1/command/lock").touch()
    devices = (worker / "accel0", worker / "accel1")
    left = hold(*devices, TPUX_RUN_ID="s-u-000007-w0/1/command", TPUX_RUN_HOME=str(worker))

    def preview(**options: int) -> list[str]:
        done = run(worker, "preview", **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def process(holder: subprocess.Popen[bytes], held: str) -> str:
        command = " ".join(holder.args)[:120]  # type: ignore[arg-type]  # a list of str
        return f"process {holder.pid} ({command}) of user {getpass.getuser()}, which holds {held}"

    would_end = f"would end {process(left, f'{devices[0]}, {devices[1]}')}: s-u-000007-w0/1/command has ended and left"
    [ended, lock, logs] = preview(full=0)
    assert ended.startswith(would_end)
    assert lock == f"would remove the lock file {worker}/tmp/libtpu_lockfile"
    assert logs.startswith(f"would delete the logs {worker}/tmp/tpu_logs, ")
    assert logs.endswith("% full")

    other = hold(devices[0])
    found = preview(full=0)
    assert sorted(found) == sorted(
        [
            ended,
            f"would not end {process(other, str(devices[0]))}: tpux did not start it; --force ends it too",
            "would remove nothing while the accelerator is held",
        ]
    )
    assert f"would end {process(other, str(devices[0]))}: tpux did not start it" in preview(full=0, force=True)
    assert (left.poll(), other.poll()) == (None, None)
    assert (worker / "tmp/libtpu_lockfile").exists()
    assert (worker / "tmp/tpu_logs/tpu_driver.INFO").exists()


@pytest.mark.system
def test_a_process_that_ignores_sigterm_is_killed(worker: Path, hold: Start) -> None:
    stubborn = hold(worker / "accel0", ignore_term=True)
    assert run(worker, "repair", force=True).returncode == 0
    assert stubborn.wait(timeout=30) == -9


def test_a_lock_file_that_a_process_has_open_is_kept(worker: Path, hold: Start) -> None:
    [finding] = [one for one in diagnose(worker) if "lockfile" in one.message]
    assert (finding.level, finding.hint) == ("warning", "tpux solve 7")
    hold(worker / "tmp/libtpu_lockfile")
    run(worker, "repair")
    assert (worker / "tmp/libtpu_lockfile").exists()


def test_logs_are_deleted_from_a_full_disk_and_only_there(worker: Path, tmp_path: Path) -> None:
    assert [one.hint for one in diagnose(worker, full=0) if "full" in one.message] == [
        "tpux solve 7 deletes these logs"
    ]
    (worker / "precious").mkdir()
    (worker / "precious/data").touch()
    (worker / "tmp/tpu_logs/link").symlink_to(worker / "precious")
    run(worker, "repair", full=0)
    assert not (worker / "tmp/tpu_logs").exists()
    (worker / "tmp/tpu_logs").symlink_to(worker / "precious")  # as another user of /tmp could do
    run(worker, "repair", full=0)
    assert (worker / "precious/data").exists()


def test_a_job_whose_tpu_is_busy_is_repaired_and_resumed(worker: Path, hold: Start) -> None:
    holder = hold(worker / "accel0")
    busy = f"echo 'The TPU is already in use by process with pid {holder.pid}'; exit 1"
    config = {
        "job": {"rule": "resume", "max_restarts": {"tpu-busy": 1}},
        "libtpu": {"devices": [f"{worker}/accel*"], "directory": f"{worker}/tmp"},
        "command": {"cmd": f"if [ -d /proc/{holder.pid}/fd ] && ls /proc/{holder.pid}/fd/3; then {busy}; fi"},
    }
    refused = run_job(config)
    assert (refused.state, holder.poll()) == ("failed", None)
    assert f"process {holder.pid} (python" in refused.logs["tpu.log"]
    repaired = run_job({**config, "solve": {"force": True}})
    assert (repaired.state, repaired.attempts) == ("succeeded", 2)
    assert holder.wait(timeout=30) == -15


def test_a_process_that_listens_on_a_port_of_libtpu_holds_the_tpu(worker: Path) -> None:
    code = "import signal, socket; s = socket.create_server(('127.0.0.1', 0));"
    code += "print(s.getsockname()[1], flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as listening:
        try:
            assert listening.stdout is not None
            section = section_of(worker).model_copy(update={"ports": [int(listening.stdout.readline())]})
            step = device_step("list", section)
            listed = subprocess.run(["sh", "-e", "-c", step.script], cwd=worker, capture_output=True, text=True)
            [found] = [one for one in findings_of(listed.stdout, section, "tpux solve 7", "") if "holds" in one.message]
            assert f"process {listening.pid} (" in found.message
            assert found.message.endswith(f"holds port {section.ports[0]}, and tpux did not start it")
            assert what_holds(listed.stdout, section, "tpux solve 7", "")[0] == "occupied"
        finally:
            listening.kill()
