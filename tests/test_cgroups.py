"""Programs that leave the session and clear their environment: a stop ends them where cgroup v2 can be used."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def own_cgroup() -> Path | None:
    """Return the directory of this process's cgroup, None where there is no cgroup v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if line.startswith("0::") and Path(f"{base}{line[3:]}/cgroup.procs").exists():
                return Path(f"{base}{line[3:]}")
    return None


@pytest.fixture(autouse=True)
def _usable() -> None:
    if (own := own_cgroup()) is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup can be made in this process's own one")


ESCAPED = """
import os, signal, sys, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
def say(*_):
    with open(sys.argv[1] + ".term", "a") as file:
        file.write("got it\\n")
    if sys.argv[2] != "stays":
        os._exit(0)
signal.signal(signal.SIGTERM, say)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
while True:
    time.sleep(1)
"""
CONFIG = """
command:
  cmd: env -i $(command -v python3) WORK/escaped.py WORK/NAME HOW; sleep 0.3; END
  grace_period: 1s
"""


def create(tpux, name: str, end: str = "exec sleep 1000", how: str = "ends") -> str:
    (tpux.work / "escaped.py").write_text(ESCAPED)
    text = CONFIG.replace("WORK", str(tpux.work)).replace("NAME", name).replace("END", end).replace("HOW", how)
    job = tpux.create(text, "job.rule=pass")
    tpux.until(lambda: (tpux.work / name).exists() and (tpux.work / name).read_text(), "for the program that escapes")
    return job


def pid_of(tpux, name: str) -> int:
    return int((tpux.work / name).read_text())


def cgroup_of(tpux, job: str) -> Path:
    [file] = tpux.machines(job).glob("worker-0/.tpux/runs/*/1/command/cgroup")
    return Path(file.read_text().strip())


@pytest.mark.parametrize("how", ["ends", "stays"])
def test_a_stop_ends_what_has_left_the_session_and_cleared_its_environment_and_nothing_else(tpux, how):
    job, other = create(tpux, "one", how=how), create(tpux, "two")
    cgroup, others = cgroup_of(tpux, job), cgroup_of(tpux, other)
    assert str(pid_of(tpux, "one")) in (cgroup / "cgroup.procs").read_text().split()
    tpux.kill_supervisor()
    tpux("stop", job)
    assert not tpux.alive(pid_of(tpux, "one"))
    assert (tpux.work / "one.term").read_text() == "got it\n"
    assert not cgroup.exists()
    assert tpux.alive(pid_of(tpux, "two"))
    assert not (tpux.work / "two.term").exists()
    tpux("stop", other)
    assert not tpux.alive(pid_of(tpux, "two"))
    assert not others.exists()


def test_what_a_failed_program_has_left_so_is_ended(tpux):
    job = create(tpux, "one", end="exit 3")
    tpux("wait", job, code=100)
    assert not tpux.alive(pid_of(tpux, "one"))
    assert not cgroup_of(tpux, job).exists()


@pytest.mark.parametrize("end", ["exec sleep 1000", "exit 0"])
def test_cgroups_that_the_program_has_made_are_ended_and_removed_with_its_own(tpux, end):
    made = """base=/sys/fs/cgroup own=$(grep ^0:: /proc/self/cgroup | cut -c4-)
    [ -e $base$own ] || base=$base/unified
    mkdir -p $base$own/a/b"""
    inside = "env -i setsid sh -c 'echo $$ >'$base$own'/a/b/cgroup.procs; echo $$ >PID; exec sleep 1000' &"
    text = f"{made}\n{'' if end == 'exit 0' else inside.replace('PID', str(tpux.work / 'pid'))}\n{end}\n"
    (tpux.work / "program.sh").write_text(text)
    job = tpux.create(f"command: {{cmd: sh {tpux.work}/program.sh, grace_period: 1s}}\n")
    if end == "exit 0":
        tpux("wait", job)
    else:
        tpux.until(lambda: (tpux.work / "pid").exists() and (tpux.work / "pid").read_text(), "for the process inside")
        tpux("stop", job)
        assert not tpux.alive(pid_of(tpux, "pid"))
    assert not cgroup_of(tpux, job).exists()


def test_the_cgroup_of_a_program_that_ends_is_removed_and_its_steps_have_none(tpux):
    module = "from tpux import hookimpl, sh\n@hookimpl\ndef setup(): yield sh('cat /proc/self/cgroup')\n"
    tpux.plugin("tpux-note", module, entries="note = tpux_note")
    job = tpux.create("setup: {modules: [note]}\ncommand: {cmd: cat /proc/self/cgroup}\n")
    tpux("wait", job)
    cgroup = cgroup_of(tpux, job)
    assert f"/{cgroup.name}\n" in tpux.output(job).decode()
    assert not cgroup.exists()
    assert len(list(tpux.machines(job).glob("worker-0/.tpux/runs/*/*/*/cgroup"))) == 1


def test_a_supervisor_that_a_program_starts_is_not_ended_with_it(tpux):
    home = tpux.work / "inner"
    inner = f"TPUX_HOME={home} {tpux.python} -m tpux.cli.main create {tpux.work}/inner.yaml"
    (tpux.work / "inner.yaml").write_text("command: {cmd: 'echo up; exec sleep 1000'}\n")
    job = tpux.create(f"command: {{cmd: '{inner} && exec sleep 1000', grace_period: 1s}}\n")
    tpux.until(lambda: list(home.glob("jobs/*/*/logs/attempt-1/command_worker_0.log")), "for the inner program")
    tpux("stop", job)
    tpux.env["TPUX_HOME"], outer = str(home), tpux.env["TPUX_HOME"]
    with contextlib.ExitStack() as stack:
        stack.callback(tpux.env.__setitem__, "TPUX_HOME", outer)
        [inner_job] = [path.parents[2].name for path in home.glob("jobs/*/*/logs/attempt-1/command_worker_0.log")]
        log = next(home.glob("supervisor/*/log")).read_text()
        assert log.count("started, process") == 1
        assert tpux.supervisor() is not None
        assert tpux.show(inner_job)["state"] == "running"
        tpux("delete", inner_job, "-y")
    assert next(home.glob("supervisor/*/log")).read_text().count("started, process") == 1
