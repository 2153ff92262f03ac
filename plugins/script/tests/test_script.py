"""What the script receives, and when it runs again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import tpux_script
from tpux import Put, Result, Sh
from tpux.model.steps import dry_run
from tpux_script import check, setup
from tpux_script.section import ScriptSection
from tpux_testing import ContractError, prepare, worker
from tpux_testing import job as made_job
from tpux_worker_tools import apt

VALUES = [
    "plain",
    "",
    "two words",
    "'single' \"double\"",
    "$HOME `id` \\",
    "*",
    "~",
    "new\nline",
    "é\t",
    "-n",
    "{name}",
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "setup.sh"


def config(script: Path, content: str, **keys: object) -> dict[str, object]:
    script.write_text(content)
    return {"path": str(script), **keys}


def test_arguments_and_variables_arrive_as_they_are(script):
    variables = f"[os.environ[f'V{{i}}'] for i in range({len(VALUES)})]"
    program = f"#!{sys.executable}\nimport os, sys\nprint([sys.argv[1:], {variables}])\n"
    keys = {"args": VALUES, "env": {f"V{number}": value for number, value in enumerate(VALUES)}}
    log = prepare("script", config(script, program, **keys)).log
    assert str([VALUES, VALUES]) in log
    assert "$ # run the set-up script ..." in log


def test_the_variables_are_not_left_on_the_worker_nor_in_the_log(script):
    keys = {"env": {"TOKEN": "s3cret"}}
    content = '# not while it runs either: a stop would leave them\n[ ${#TOKEN} = 6 ] && ! grep -r "$TOKEN" ~/.tpux\n'
    assert "s3cret" not in prepare("script", config(script, content, **keys)).log


def test_a_script_that_fails_is_reported_with_its_last_line(script):
    with pytest.raises(ContractError, match="run the set-up script"):
        prepare("script", config(script, "echo no such disk; exit 3\n"))


def test_the_users_check_decides_too(script):
    with pytest.raises(ContractError, match="check the set-up"):
        prepare("script", config(script, "true\n", check="test -e mounted"))
    prepare("script", config(script, "touch mounted\n", check="test -e mounted"))


class SharedMachine:
    """A machine that several jobs use."""

    def __init__(self, host, tmp_path: Path) -> None:
        self.host = host
        self.path = tmp_path / "setup.sh"
        self.job = made_job()

    def set_up(self, number: int, content: str) -> str:
        """Set up a job's worker; return the output, and the exit code of the check after it."""
        self.path.write_text(content)
        section, one = ScriptSection(path=self.path), replace(self.job, id=f"{number:06}")
        output = ""
        for step in [*dry_run(setup(one, section, worker())), *dry_run(check(one, section, worker()))]:
            if isinstance(step, Put):
                self.host.put(step.source, step.remote, step.mode)
            else:
                result = self.host.run(f"set -e\n{step.script}", timeout=60)
                output += f"{result.text}\nexit {result.code}\n"
        return output

    def is_ready(self, number: int) -> bool:
        [step] = dry_run(check(replace(self.job, id=f"{number:06}"), ScriptSection(path=self.path), worker()))
        assert isinstance(step, Sh)
        return self.host.run(f"set -e\n{step.script}").ok


def test_two_jobs_that_share_a_machine_run_their_scripts_one_after_the_other(local_host, tmp_path, monkeypatch):
    host = local_host()
    first, second = SharedMachine(host, tmp_path / "a"), SharedMachine(host, tmp_path / "b")
    for machine in (first, second):
        machine.path.parent.mkdir()
    slow = "echo first >>log; sleep 1000 >/dev/null 2>&1 & echo $! >pid\n"
    slow += "touch started; until [ -e go ]; do sleep 0.02; done; echo ended >>log\n"
    outputs: list[str] = []
    thread = threading.Thread(target=lambda: outputs.append(first.set_up(1, slow)))
    thread.start()
    while not host.run("test -e started").ok:
        assert thread.is_alive()
    monkeypatch.setattr(tpux_script, "LOCK_TIMEOUT", 1)
    late = second.set_up(2, "echo second >>log\n")
    assert "waiting for job 1 of" in late
    assert "has not ended its set-up script within 1 s: wait for it, or stop it\nexit 75" in late
    host.run("touch go")
    thread.join()
    done = second.set_up(2, "echo second >>log\n")
    assert done.endswith("exit 0\n\nexit 0\n"), "a program in the background holds nothing"
    assert outputs[0].endswith("exit 0\n\nexit 0\n")
    assert host.run("cat log").text.split() == ["first", "ended", "second"]
    ready = [one.is_ready(number) for one, number in ((first, 1), (second, 2), (second, 3), (first, 3))]
    assert ready == [True, True, True, False], "each job's own script has run; of another job's, the last one counts"
    host.run("kill $(cat pid)")


def listed(tmp_path: Path, **contents: str) -> list[Path]:
    paths = [tmp_path / f"{name}.sh" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_text(content)
    return paths


def run_all(host, steps) -> tuple[str, int]:
    """Run steps as core does; return what they printed, and the code of the first that failed."""
    output, result = "", None
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            return output, 0
        if isinstance(step, Put):
            host.put(step.source, step.remote, step.mode)
            result = Result()
            continue
        result = host.run(f"set -e\n{step.script}", timeout=60)
        output += f"{result.text}\n"
        if not result.ok and not step.may_fail:
            return output, result.code


def test_several_scripts_run_in_order_and_only_the_one_whose_check_fails_runs_again(local_host, tmp_path):
    host, one = local_host(), made_job()
    jax, tmpfs = listed(tmp_path, jax='echo "jax $1" >>ran\n', tmpfs="echo tmpfs >>ran; touch mounted\n")
    given = [{"path": jax, "args": ["nightly"]}, {"path": tmpfs, "check": "test -e mounted"}]
    section = ScriptSection.model_validate(given)
    assert run_all(host, check(one, section, worker()))[1] == 1
    assert run_all(host, setup(one, section, worker()))[1] == 0
    assert run_all(host, check(one, section, worker()))[1] == 0
    assert host.run("cat ran").text.split("\n") == ["jax nightly", "tmpfs"]
    host.run("rm mounted")
    assert run_all(host, check(one, section, worker()))[1] == 1
    assert run_all(host, setup(one, section, worker()))[1] == 0
    assert host.run("cat ran").text.split("\n") == ["jax nightly", "tmpfs", "tmpfs"]
    tmpfs.write_text("echo other >>ran\n")
    assert run_all(host, setup(one, section, worker()))[1] == 0
    assert host.run("cat ran").text.split("\n")[3:] == ["other"]
    assert run_all(host, check(one, section, worker()))[1] == 0


APT_LOCKED = """
count=$(cat count 2>/dev/null || echo 0)
echo $((count + 1)) >count
if [ "$count" -lt 4 ]; then
    echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1719 (unattended-upgr)" >&2
    echo "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?" >&2
    exit 100
fi
echo installed
"""


@pytest.fixture
def quick_host(local_host, tmp_path):
    """Return a worker on which no pause takes time; it lists them in `pauses`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sleep").write_text('#!/bin/sh\necho "$@" >>"$HOME/pauses"\n')
    (tmp_path / "bin/sleep").chmod(0o755)
    return local_host(PATH=f"{tmp_path}/bin:{os.environ['PATH']}")


def test_a_script_that_meets_the_lock_of_apt_is_run_again_until_it_is_free(quick_host, script):
    script.write_text(APT_LOCKED)
    output, code = run_all(quick_host, setup(made_job(), ScriptSection(path=script), worker()))
    assert code == 0, output
    assert output.count("E: Unable to acquire") == 4
    assert output.rstrip().endswith("installed")
    assert quick_host.run("cat pauses").text.split() == ["5", "10", "20", "40"]


def test_a_lock_that_is_never_free_is_named_and_the_network_is_tried_less_long(quick_host, script, monkeypatch):
    monkeypatch.setattr(tpux_script, "LOCK_TIMEOUT", 0)
    script.write_text(APT_LOCKED)
    output, code = run_all(quick_host, setup(made_job(), ScriptSection(path=script), worker()))
    assert code == 100
    assert "has held the lock of apt" in output.splitlines()[-1]
    script.write_text("echo curl: Could not resolve host: example.org; exit 6\n")
    output, code = run_all(quick_host, setup(made_job(), ScriptSection(path=script), worker()))
    assert (code, output.count("Could not resolve")) == (6, 4)
    script.write_text("echo no such disk; exit 3\n")
    output, code = run_all(quick_host, setup(made_job(), ScriptSection(path=script), worker()))
    assert (code, output.count("no such disk")) == (3, 1)


def test_a_script_that_uses_apt_waits_for_its_lock(local_host, script, tmp_path, monkeypatch):
    lock = tmp_path / "lock-frontend"
    monkeypatch.setattr(apt, "LOCKS", [str(lock)])
    script.write_text("# uses apt-get\ncat held; cat $APT_CONFIG\n")
    host = local_host()
    hold = f"""
import fcntl, pathlib, sys, time
file = open({str(lock)!r}, "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
pathlib.Path({str(host.home)!r}, "held").write_text("until now\\n")
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        answers = []
        steps = setup(made_job(), ScriptSection(path=script), worker())
        thread = threading.Thread(target=lambda: answers.append(run_all(host, steps)))
        thread.start()
        thread.join(2)  # it either waits by now or has failed
        holder.stdin.close()
        thread.join()
    output, code = answers[0]
    assert code == 0, output
    assert "waiting for the lock of apt, which python" in output
    assert "until now" in output
    assert 'DPkg::Lock::Timeout "600"' in output


def test_what_a_script_leaves_in_the_background_does_not_hold_the_set_up(local_host, script):
    script.write_text("sleep 1000 & echo $! >pid; echo all of it\n")
    host = local_host()
    output, code = run_all(host, setup(made_job(), ScriptSection(path=script), worker()))
    host.run("kill $(cat pid)")
    assert (code, output.strip()) == (0, "all of it")
