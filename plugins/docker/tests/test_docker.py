"""Jobs on local workers with a real docker daemon."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tpux import hookimpl
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.connection import JobConnection
from tpux_docker import scripts
from tpux_libtpu.devices import device_step
from tpux_libtpu.section import LibtpuSection
from tpux_testing.sandbox import Sandbox, SandboxJob, SkippingClock

SECRET = "two\nlines 'of' \"a\" $SECRET"
# The last attempt waits for the end of its container; the others for a file.
PROGRAM = """
printf '%s|' "$PWD" "$TPUX_WORKER" "$TPUX_ATTEMPT" "$FROM_IMAGE" "$HOME" "$TOKEN" "$SAME" "$TPUX_RUN_ID"; echo
cat here.txt /data/one.txt && echo written >/data/two.txt
echo saved >"$TPUX_OUTPUT_DIR/saved"
[ -z "$RECORDS" ] || echo kept >"$RECORDS/of-$TPUX_WORKER"
[ -z "$TPUX_PREVIOUS_OUTPUT_DIR" ] || cat "$TPUX_PREVIOUS_OUTPUT_DIR/saved"
trap 'echo got TERM; exit 5' TERM
trap 'echo got INT' INT
kill -s INT $$
echo ready >&2
until [ -e "$TPUX_OUTPUT_DIR/end-$TPUX_WORKER" ]; do sleep 0.05; done
kill -s SEGV $$
"""


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN", SECRET)
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def config(image, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/here.txt").write_text("the code\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.txt").write_text("the data\n")
    return {
        "job": {"env_type": "docker", "rule": "pass"},
        "tpu": {"accelerator": "v4-16"},
        "code": str(tmp_path / "code"),
        "docker": {
            "image": image,
            "env_vars": ["HOME=/tmp", "TOKEN=${env:TOKEN}", "SAME=docker"],
            "mount_dirs": [f"{tmp_path}/data:/data"],
            "flags": ["--security-opt seccomp=unconfined", "-it"],
        },
        "command": {"cmd": PROGRAM, "env": {"SAME": "command"}, "grace_period": 20},
    }


def ready(job: SandboxJob, attempt: int, workers: int = 2):
    job.until(lambda state: state.attempt == attempt and all("ready\n" in job.output(i) for i in range(workers)))


def restarted(job: SandboxJob) -> SandboxJob:
    """Return the job as a new supervisor sees it, which knows only what is on disk."""
    before, clock = job.controller, SkippingClock()
    return SandboxJob(JobController(before.store, before.record, before.plugins, clock), clock)


def wait_until(holds, what: str):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def command_lines() -> str:
    paths = (process / "cmdline" for process in Path("/proc").glob("[0-9]*"))
    found = []
    for path in paths:
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found).decode(errors="replace")


class Records:
    """A detector that lets the program write to a directory of its own."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    @hookimpl
    def classify_failure(self):
        return None

    @hookimpl
    def prepare_command(self, command):
        return replace(command, env={**command.env, "RECORDS": self.path}, directories=(self.path,))


def test_commands_beside_the_program(daemon, config, sandbox, tmp_path):
    config["command"]["cmd"] = "echo mine >/tmp/mine; printf '%s\\n' \"$PWD\" ready; exec sleep 1000"
    job = sandbox.start(config)
    ready(job, 1)
    machines = job.state.machines
    connection = JobConnection(job.controller.begin().job, machines, job.controller.plugins, job.state)
    containers = sorted(daemon.containers())

    def run(script: str, worker: int = 0) -> tuple[int, str]:
        output = bytearray()
        host = connection.open(machines.workers[worker])
        try:
            code = connection.script(script, beside=True).follow(host, output.extend, timeout=100)
        finally:
            host.close()
        return code, output.decode()

    where, _ = job.output(0).splitlines()
    show = """cat /tmp/mine 2>&-; printf '%s|' "$PWD" "$FROM_IMAGE" "$HOME" "$TOKEN" "$SAME" "$TPUX_WORKER"; exit 3"""
    seen = f"{where}|yes|/tmp|{SECRET}|command|0|"
    assert run(show) == (3, f"mine\n{seen}")
    assert run('[ -t 0 ] || cat; echo "it\'s  $TPUX_DOCKER_VARIABLE_0"', 1) == (0, "it's  \n")
    assert sorted(daemon.containers()) == containers, "the program's containers are left alone"

    program = connection.script("sleep 91.5", beside=True)
    with ThreadPoolExecutor() as pool, closing(connection.open(machines.workers[0])) as host:
        code = pool.submit(program.follow, host, lambda _: None, timeout=100)
        wait_until(lambda: "sleep\0" + "91.5" in command_lines(), "the command has not begun")
        with closing(connection.open(machines.workers[0])) as other:
            program.terminate(other)
        assert code.result() != 0
    assert "sleep\0" + "91.5" not in command_lines(), "it has ended in the container, too"
    assert sorted(daemon.containers()) == containers

    job.request("stop", keep=True)
    job.until(lambda state: state.state == "stopped")
    assert daemon.containers() == []
    assert run(show) == (3, seen), "without the files of the program's container"
    wait_until(lambda: daemon.containers() == [], "the command's own container has not ended")


def test_a_job_from_its_start_to_its_stop(daemon, config, sandbox, tmp_path):
    sandbox.plugins.add("records", Records(tmp_path / "new directory/records"))
    config["command"]["finished_by"] = ["records"]
    job = sandbox.start(config)
    ready(job, 1)
    names = [
        f"tpux-{job.controller.begin().job.id}-{job.controller.begin().job.token}-1-w{index}" for index in range(2)
    ]
    assert sorted(daemon.containers()) == names
    for place in (command_lines(), daemon("inspect", *names)):
        assert "two\nlines" not in place
        assert "two\\nlines" not in place

    job = restarted(job)  # finds the programs still running
    for index in range(2):
        Path(job.state.run.output_dir, f"end-{index}").touch()
    job.until(lambda state: state.ended)
    assert [ending.code for ending in job.state.endings.values()] == [139, 139]
    home = job.controller.begin().machines.workers[0].details["home"]
    directory = f"{home}/.tpux/code/jobs/{job.controller.begin().job.key}"
    assert f"{directory}|0|1|yes|/tmp|{SECRET}|command||\nthe code\nthe data\n" in job.output(0)
    assert job.output(1).endswith("\ngot INT\nready\n")
    assert (tmp_path / "data/two.txt").read_text() == "written\n"
    assert (tmp_path / "new directory/records/of-1").read_text() == "kept\n"
    assert daemon.containers() == []

    job.request("resume")
    ready(job, 2)
    assert "\nsaved\n" in job.output()
    job.request("stop")
    job.until(lambda state: state.state == "stopped")
    assert [job.output(index).count("got TERM") for index in range(2)] == [1, 1]
    assert daemon.containers() == []


STUCK = """
import sys, time
def wait_for_peer():
    time.sleep(1000)
device = open("/data/accel0")
print("ready", file=sys.stderr, flush=True)
wait_for_peer()
"""


def test_the_stacks_of_a_stalled_program_are_in_its_output_and_it_is_known_what_it_holds(
    daemon, config, sandbox, tmp_path
):
    """Python is that of the tests, with the libraries that it needs. Only worker 1 has py-spy, in its container."""
    (tmp_path / "code/stuck.py").write_text(STUCK)
    (tmp_path / "code/spy").mkdir()
    (tmp_path / "code/spy/py-spy").write_text('#!/usr/bin/bash\nread -r first </proc/1/comm\necho "$* beside $first"\n')
    (tmp_path / "code/spy/py-spy").chmod(0o755)
    listed = subprocess.run(
        ["ldd", os.path.realpath(sys.executable)], capture_output=True, text=True, check=True
    ).stdout
    libraries = {str(Path(word).parent) for word in listed.split() if word.startswith("/")}
    config["docker"]["mount_dirs"] += [f"{path}:{path}:ro" for path in {sys.base_prefix, *libraries}]
    os.mknod(tmp_path / "data/accel0", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    cmd = f"""
    ulimit -c unlimited
    export LD_LIBRARY_PATH={":".join(libraries)} PYTHONHOME={sys.base_prefix}
    [ $TPUX_WORKER = 0 ] || export PATH=$PWD/spy:$PATH
    {os.path.realpath(sys.executable)} stuck.py
    """
    config["job"] |= {"stalled_after": 3}
    job = sandbox.start({**config, "command": {"cmd": cmd, "grace_period": 1}})
    ready(job, 1)
    home, key = job.controller.begin().machines.workers[1].details["home"], job.controller.begin().job.key
    held = device_step("list", LibtpuSection(devices=["/data/accel*"]))
    listed = subprocess.run(["sh", "-c", held.script], cwd=home, capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r"\t(live\t\S*|other)\t", listed)) == [f"live\t{key}-w1/1/command", "other"], (
        "another worker of this machine has another home directory"
    )
    job.until(lambda state: state.ended)
    assert job.state.failure.kind == "stalled"
    aborted, dumped = (job.output(index).partition("tpux: the stack of process ")[2] for index in range(2))
    assert "which is ended because it is silent:\nFatal Python error: Aborted\n" in aborted
    assert " in wait_for_peer\n" in aborted
    assert not list((tmp_path / "code").glob("core*"))
    assert re.search(r"silent:\ndump --pid \d{1,2} beside bash\n", dumped)
    assert "Fatal Python error" not in dumped
    assert daemon.containers() == []


COUNT_SIGNALS = """
count=0
trap 'count=$((count + 1))' TERM
echo ready
while [ $count = 0 ]; do sleep 0.05; done
for _ in 1 2 3 4 5 6; do sleep 0.05; done
echo "$count SIGTERM"
exit 5
"""


def signal_clients(name: str, number: signal.Signals):
    """Signal docker's client, and the shell that waits for it."""
    for pid in subprocess.run(["pgrep", "-f", "--", f"--name={name} "], capture_output=True, text=True).stdout.split():
        with suppress(ProcessLookupError):  # one may have ended by the signal to the other
            os.kill(int(pid), number)


def test_a_container_ends_with_its_client(daemon, config, sandbox):
    """As when tpux ends the client because the machine is taken away: without docker's help."""
    job = sandbox.start({**config, "tpu": {}, "command": {"cmd": COUNT_SIGNALS}})
    ready(job, 1, workers=1)
    (name,) = daemon.containers()
    signal_clients(name, signal.SIGKILL)
    wait_until(lambda: daemon.containers() == [], "the container outlives its client")
    job.until(lambda state: state.ended)
    assert job.state.endings[0].code == 137
    assert job.output() == "ready\n"

    label = f"--label=tpux.worker={job.controller.begin().job.key}-w0"
    daemon("run", "--detach", label, "--name=left", "--network=none", daemon.image, "sleep", "1000")
    job.request("resume")
    ready(job, 2, workers=1)
    (name,) = daemon.containers()
    assert name.endswith("-2-w0"), "a container of an earlier attempt is removed"
    for _ in range(2):  # sudo and the client both pass it on
        signal_clients(name, signal.SIGTERM)
    job.until(lambda state: state.ended)
    assert job.state.endings[0].code == 5
    assert job.output().endswith("1 SIGTERM\n")
    assert daemon.containers() == []


def test_a_program_that_ends_at_once_leaves_only_its_output():
    """Without docker: the first process of the container must not report the end of a job of its shell."""
    for _ in range(60):
        init = ["bash", "-c", scripts.INIT, "tpux-docker", "/dev/null", "sh", "-c", 'echo "$A"; exit 9']
        process = subprocess.Popen(init, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process.stdin.write(b"A=1\n2\0\0")
        process.stdin.flush()
        assert (process.stdout.read(), process.wait()) == (b"1\n2\n", 9)
        process.stdin.close()
        process.stdout.close()
