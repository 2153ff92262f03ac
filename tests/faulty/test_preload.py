"""The library of faults itself: each fault reaches the processes that it is meant for, and ends when it is used up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faulty.preload import CALLS, Faults

CODE = {
    "open": "open(path)",
    "read": "os.read(file, 1)",
    "write": "os.write(file, b'x')",
    "sync": "os.fsync(file)",
    "rename": "os.replace(path, path)",
    "unlink": "os.unlink(path)",
    "stat": "os.stat(path)",
    "mkdir": "os.mkdir(path + '.d')",
    "lock": "fcntl.flock(file, fcntl.LOCK_EX)",
    "truncate": "os.ftruncate(file, 0)",
    "fork": "subprocess.run(['true'])",
    "thread": "threading.Thread(target=print).start()",
    "list": "os.listdir(os.path.dirname(path))",
}
PROGRAM = """
import fcntl, os, subprocess, sys, threading
path, code = sys.argv[1:]
file = os.open(path, os.O_RDWR)
print("ready", flush=True)
input()
for _ in range(2):
    try:
        exec(code)
    except (OSError, RuntimeError) as error:
        print(getattr(error, "errno", "?"), flush=True)
    else:
        print("ok", flush=True)
"""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_fails_as_often_as_the_rule_says(tmp_path, call):
    faults, path = Faults(tmp_path), tmp_path / "file"
    path.write_text("text")
    env: dict[str, str] = {"PATH": "/usr/bin:/bin"}
    faults.install(env)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), CODE[call]],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    other = faults.fail("EIO", call, process="*another program*")
    rule = faults.fail("EAGAIN", call, f"{tmp_path}*", times=1, process=f"*{path}*")
    output, _ = program.communicate("\n", timeout=60)
    first, *rest = output.splitlines()
    assert first in {"11", "?"}, "Python's error for a thread has no number"
    assert "ok" in rest
    assert (rule.hits, rule.used_up, other.hits) == (1, True, 0)


def test_a_lock_without_effect(tmp_path):
    faults, path = Faults(tmp_path), tmp_path / "file"
    path.write_text("text")
    env: dict[str, str] = {"PATH": "/usr/bin:/bin"}
    faults.install(env)
    code = "import fcntl, sys; files = [open(sys.argv[1]) for _ in '12']; [fcntl.flock(f, 6) for f in files]"
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode == 1
    with faults.fail("NONE", "lock", str(path)):
        assert subprocess.run(command, env=env).returncode == 0
    assert subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode == 1


def test_the_supervisor_has_the_library(tpux, faults):
    job = tpux.create("command: {cmd: 'echo up; sleep 1000'}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    rule = faults.fail("EIO", "stat", "*/wake", times=1, process="*tpux.supervisor*")
    tpux("stop", job, "--no-wait")
    tpux.until(lambda: rule.used_up, "for the supervisor to look whether a command woke it")
