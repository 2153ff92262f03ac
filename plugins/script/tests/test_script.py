"""What the script receives, and when it runs again."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import tpux_script
from tpux import Put, Sh
from tpux.model.steps import dry_run
from tpux_script import check, setup
from tpux_script.section import ScriptSection
from tpux_testing import ContractError, prepare, worker
from tpux_testing import job as made_job

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
