"""Commands use the connections that the supervisor of a live job holds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tpux import framing
from tpux.remote import forwarded

CONFIG = "tpu: {accelerator: v4-16}\ncommand: {cmd: 'echo ready; exec sleep 1000', grace_period: 1s}\n"
UNKNOWN = "whether it ran to its end is unknown"


@pytest.fixture
def job(tpux):
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"
    job = tpux.create(CONFIG)
    tpux.until(lambda: all(tpux.output_so_far(job, worker) == b"ready\n" for worker in (0, 1)))
    return job


def address(tpux) -> Path:
    return next(tpux.home.glob("supervisor/*")) / "calls/socket"


def parent(tpux, job: str) -> int:
    """Return the process that runs a command on worker 0, which is on this machine."""
    return int(tpux("exec", job, "--host", "--worker", "0", "echo $PPID").stdout.split()[1])


def home_of(tpux, job: str, worker: int = 0) -> Path:
    return tpux.machines(job) / f"worker-{worker}"


def memory(pid: int, key: str = "VmHWM") -> int:
    """Return the most memory that a process had, in MB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) // 1024


def begin(tpux, job: str, script: str) -> subprocess.Popen[bytes]:
    """Begin a command on worker 0 that says in the file `runs` that it has begun."""
    running = tpux.popen("exec", job, "--host", "--worker", "0", f"echo began >>runs; {script}")
    tpux.until((home_of(tpux, job) / "runs").exists)
    return running


def test_commands_run_over_the_connections_of_the_supervisor(tpux, job):
    assert parent(tpux, job) == tpux.supervisor()
    data = bytes(range(256)) * 40_000
    (tpux.work / "data").write_bytes(data)
    (tpux.work / "data").chmod(0o640)
    tpux("cp", "data", f"{job}:there/data")
    tpux("cp", f"{job}:there/data", "back", "--worker", "all")
    for worker in (0, 1):
        assert (home_of(tpux, job, worker) / "there/data").stat().st_mode & 0o777 == 0o640
        assert (tpux.work / f"back/worker-{worker}/data").read_bytes() == data
    assert "missing does not exist" in tpux("cp", f"{job}:missing", "x", code=1).stderr
    done = tpux("exec", job, "--json", "--worker", "0", "echo out; echo err >&2; exit 3", code=3)
    assert json.loads(done.stdout) == [{"worker": 0, "code": 3, "problem": "", "output": "out\nerr\n"}]
    done = tpux("exec", job, "--host", "--worker", "0", "--timeout", "0.5s", "exec sleep 1000", code=124)
    assert "was ended" in done.stderr


def test_cp_copies_the_callers_own_file_or_none(tpux, job):
    (tpux.work / "data").write_text("content")
    copied = home_of(tpux, job) / "copy"
    shell = f"{tpux.python} -m tpux.cli.main cp"
    environment = {**os.environ, **tpux.env, "TPUX_HOME": str(tpux.home)}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        copied.unlink(missing_ok=True)
        return subprocess.run(
            ["sh", "-c", command], cwd=tpux.work, env=environment, capture_output=True, text=True, check=False
        )

    assert run(f"{shell} /dev/stdin {job}:copy <data").returncode == 0
    assert copied.read_text() == "content"
    if os.geteuid() == 0:
        (tpux.work / "other").write_text("another")
        inside = f"unshare -m sh -c 'mount --bind other data && {shell} data {job}:copy'"
        done = run(inside)
        assert done.returncode == 1
        assert "is another file for the supervisor" in done.stderr
        assert not copied.exists()


def test_a_command_outlives_the_last_job(tpux, job):
    """Its machines may be kept; only then does the supervisor end."""
    running = begin(tpux, job, f"until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done; echo done")
    tpux("stop", job)
    supervisor = tpux.supervisor()
    (tpux.work / "GO").touch()
    assert b"done" in running.communicate(timeout=60)[0]
    assert running.returncode == 0
    tpux.until(lambda: not tpux.alive(supervisor), "for the supervisor's end")


def test_only_this_user_can_use_the_socket(tpux, job, monkeypatch):
    path = address(tpux)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(path))
        forwarded.require_same_user(connection)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(PermissionError):
            forwarded.require_same_user(connection)


def test_without_a_supervisor_a_command_connects_by_itself(tpux, job):
    tpux("supervisor", "stop")
    assert not address(tpux).exists()
    assert parent(tpux, job) > 0
    tpux("supervisor", "start")
    tpux.until(lambda: parent(tpux, job) == tpux.supervisor())


@contextmanager
def other_supervisor(path: Path, answer: bytes | None) -> Iterator[list[bytes]]:
    """Listen where a supervisor does, as one that says this, or nothing; collect what it is sent."""
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                if answer is not None:
                    connection.sendall(answer)
                while piece := connection.recv(4096):
                    received.append(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield received
        thread.join(60)
        path.unlink()


@pytest.mark.parametrize("answer", [b"tpux-frames 0\n", b"tpux-frames 2\n", b"HTTP/1.1 400 Bad Request\r\n", None])
def test_one_that_is_older_or_newer_or_does_not_answer_is_not_used(tpux, job, answer):
    tpux("supervisor", "stop")
    with other_supervisor(address(tpux), answer) as received:
        assert tpux("exec", job, "--host", "--worker", "0", "echo ran >>runs; cat runs").stdout == "[0] ran\n"
    assert b"".join(received) == framing.HELLO % framing.VERSION


def test_a_supervisor_that_is_killed_leaves_the_outcome_unknown_and_nothing_runs_twice(tpux, job):
    running = begin(tpux, job, "sleep 1; echo ended; exec sleep 1000")
    os.kill(tpux.supervisor(), signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 255
    assert UNKNOWN in err.decode()
    assert "the supervisor has ended" in err.decode()
    assert (home_of(tpux, job) / "runs").read_text() == "began\n"
    assert tpux("exec", job, "--host", "--worker", "0", "echo again").stdout == "[0] again\n"


def test_a_supervisor_that_is_stopped_ends_calls_and_says_so(tpux, job):
    running = begin(tpux, job, "exec sleep 1000")
    tpux("supervisor", "stop")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 255
    assert "the supervisor has ended (it was stopped)" in err.decode()
    assert UNKNOWN in err.decode()


def test_a_supervisor_that_replaces_itself_ends_calls_and_says_so(tpux):
    module = tpux.plugin("tpux-note", "def find_orphans(): pass\n", entries="note = tpux_note")
    tpux.env |= {"TPUX_TEST_OWN_PROCESS": "1", "TPUX_CLOCK_RATE": "20"}
    job = tpux.create(CONFIG)
    tpux.until(lambda: tpux.output_so_far(job) == b"ready\n")
    running = begin(tpux, job, "exec sleep 1000")
    module.write_text("# edited\n")
    _, err = running.communicate(timeout=120)
    assert running.returncode == 255
    assert "the supervisor has ended (it is replaced by a new one)" in err.decode()
    assert (home_of(tpux, job) / "runs").read_text() == "began\n"
    tpux.until(lambda: parent(tpux, job) == tpux.supervisor())


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_caller_that_dies_cancels_its_call(tpux, job, kind):
    running = begin(tpux, job, "echo $$ >pid; exec sleep 1000")
    tpux.until((home_of(tpux, job) / "pid").exists)
    pid = int((home_of(tpux, job) / "pid").read_text())
    assert tpux.alive(pid)
    running.send_signal(kind)
    running.wait(60)
    tpux.until(lambda: not tpux.alive(pid))
    assert parent(tpux, job) == tpux.supervisor()


@pytest.mark.system
def test_a_slow_reader_stops_its_own_command_only_and_takes_no_memory(tpux, job):
    before = memory(tpux.supervisor())
    script = "i=0; while [ $i -lt 200 ]; do head -c 1048575 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo >all"
    running = begin(tpux, job, script)
    assert running.stdout is not None
    read = len(os.read(running.stdout.fileno(), 1000))
    for _ in range(5):
        assert parent(tpux, job) == tpux.supervisor()
    assert not (home_of(tpux, job) / "all").exists()
    idle = memory(running.pid)
    while piece := os.read(running.stdout.fileno(), 1 << 20):
        read += len(piece)
        if read < 190 << 20:
            most = memory(running.pid)
    assert running.wait(60) == 0
    assert read == 200 * (1048576 + len("[0] "))
    assert memory(tpux.supervisor()) - before < 50
    assert most - idle < 50


@pytest.fixture
def slow_tar(tpux):
    """Return a directory; once the file `hang` is in it, each `tar` of a worker notes that in `runs`, and hangs."""
    directory = tpux.work / "slow"
    directory.mkdir()
    (directory / "tar").write_text(
        f"#!/bin/sh\n[ ! -e {directory}/hang ] || echo began >>{directory}/runs\n"
        f'while [ -e {directory}/hang ]; do sleep 0.1; done\nexec {shutil.which("tar")} "$@"\n'
    )
    (directory / "tar").chmod(0o755)
    tpux.env["PATH"] = f"{directory}:{tpux.env['PATH']}"
    return directory


def kill_during(tpux, slow_tar: Path, *command: str) -> str:
    """Kill the supervisor while a command runs `tar` on a worker; return what it said, and that it ran once."""
    (slow_tar / "hang").touch()
    running = tpux.popen(*command)
    tpux.until((slow_tar / "runs").exists)
    os.kill(tpux.supervisor(), signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 255
    assert (slow_tar / "runs").read_text() == "began\n"
    (slow_tar / "hang").unlink()
    return err.decode()


def test_the_outcome_of_a_copy_is_unknown_when_the_supervisor_is_killed(tpux, slow_tar, job):
    (tpux.work / "data").mkdir()
    (tpux.work / "data/file").write_text("content\n")
    said = kill_during(tpux, slow_tar, "cp", "-r", "data", f"{job}:copy", "--worker", "0")
    assert "error: worker 0: the supervisor has ended" in said
    assert UNKNOWN in said
    tpux("cp", "-r", "data", f"{job}:copy", "--worker", "0")
    assert (home_of(tpux, job) / "copy/file").read_text() == "content\n"


@pytest.mark.parametrize("restart", [[], ["--restart", "-f"]])
def test_the_outcome_of_a_sync_is_unknown_when_the_supervisor_is_killed(tpux, slow_tar, restart):
    tpux.env["TPUX_TEST_OWN_PROCESS"] = "1"
    (tpux.work / "file").write_text("one\n")
    job = tpux.create("code: .\n" + CONFIG.replace("v4-16", "v4-8"))
    tpux.until(lambda: tpux.output_so_far(job) == b"ready\n")
    (tpux.work / "file").write_text("two\n")
    said = kill_during(tpux, slow_tar, "sync", job, *restart)
    assert "warning: worker 0: the supervisor has ended" in said
    assert UNKNOWN in said
    assert f"hint: send it again: tpux sync {int(job)}" in said
    assert tpux.show(job)["attempt"] == 1
    tpux("sync", job)
    assert tpux("exec", job, "cat file").stdout == "[0] one\n"


def stand_still(tpux) -> int:
    """Stop the supervisor as it stands, as if that had been some time ago; return its process."""
    pid = tpux.supervisor()
    os.kill(pid, signal.SIGSTOP)
    at = time.monotonic() - 47
    os.utime(address(tpux).parents[1] / "heartbeat", (at, at))
    return pid


def require_standing(tpux, running: subprocess.Popen[bytes], pid: int) -> None:
    """Check that a command ends since the supervisor does not move, and that what it says to type helps."""
    try:
        _, err = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        running.kill()
        os.kill(pid, signal.SIGKILL)
        raise
    assert running.returncode == 255
    assert "worker 0: the supervisor has not moved for " in err.decode()
    assert UNKNOWN in err.decode()
    assert "hint: tpux supervisor restart --force" in err.decode()
    tpux("supervisor", "restart", "--force")
    assert not tpux.alive(pid)


@pytest.mark.system
def test_a_copy_ends_when_the_supervisor_stands_still(tpux, slow_tar, job):
    (tpux.work / "data").mkdir()
    (tpux.work / "data/file").write_text("content\n")
    (slow_tar / "hang").touch()
    running = tpux.popen("cp", "-r", "data", f"{job}:copy", "--worker", "0")
    tpux.until((slow_tar / "runs").exists)
    require_standing(tpux, running, stand_still(tpux))
    (slow_tar / "hang").unlink()


def test_a_call_that_waits_until_it_can_send_ends_when_the_supervisor_stands_still(tpux, job):
    script = f"""
        from pathlib import Path
        from tpux import api
        connection = api.workers({int(job)})
        host = connection.open(connection.worker(0))
        Path("opened").touch()
        while not Path("go").exists(): pass
        host.put(bytes(100_000_000), "large")
    """
    environment = {**os.environ, **tpux.env, "TPUX_HOME": str(tpux.home)}
    argv = [tpux.python, "-c", dedent(script)]
    running = subprocess.Popen(argv, env=environment, cwd=tpux.work, stderr=subprocess.PIPE)
    try:
        tpux.until((tpux.work / "opened").exists)
        stand_still(tpux)
        (tpux.work / "go").touch()
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
        os.kill(tpux.supervisor(), signal.SIGKILL)
    assert b"OutcomeUnknownError: worker 0: the supervisor has not moved for" in err


def test_exec_prints_a_long_line_with_one_prefix(tpux, job):
    script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo -n end"
    assert tpux("exec", job, "--worker", "0", script).stdout == f"[0] {'x' * 3000000}\n[0] end\n"
