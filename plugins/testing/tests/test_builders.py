"""The builders, `steps_of`, `prepare`, `run_job` and the fixtures, as the tests of a plugin use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpux
import tpux_testing
from tpux import ProvisionRequest, Result, Section, events, hookimpl, put, sh
from tpux.errors import ConfigError
from tpux_testing import attempt, job, prepare, request, run_job, steps_of, worker


class AptSection(Section):
    """Packages."""

    packages: list[str]
    """Their names."""


class Apt:
    """A module whose packages are files."""

    @hookimpl
    def config_section(self):
        return AptSection

    @hookimpl
    def resolve(self):
        return {"mirror": "here"}

    @hookimpl
    def check(self, config):
        yield sh("test -e {packages}", packages=config.packages[-1])

    @hookimpl
    def setup(self, config):
        arch = yield sh("uname -m", example="x86_64")
        yield put(b"", ".empty")
        yield sh("touch {packages} # {arch}", packages=config.packages, arch=arch.text)


APT = {"apt": {"packages": ["htop", "jq"]}, "setup": {"modules": ["apt"]}}


def test_a_job_is_validated_and_resolved():
    made = job(APT, plugins={"apt": Apt()})
    assert made.modules == ("apt",)
    assert made.section("apt", AptSection).packages == ["htop", "jq"]
    assert made.resolved["apt"] == {"mirror": "here"}
    assert made.directory.is_dir()
    assert job().command.cmd == "true"
    assert job("command: {cmd: ls}").command.cmd == "ls"
    with pytest.raises(ConfigError, match="unknown key"):
        job({"apt": {"package": []}}, plugins={"apt": Apt()})


def test_a_request_of_an_allocator(tmp_path):
    made = request({"tpu": {"accelerator": "v4-16"}}, saved_state={"zone": "a"}, directory=tmp_path)
    assert isinstance(made, ProvisionRequest)
    assert (made.tpu.count_workers(), made.saved_state, made.directory) == (2, {"zone": "a"}, tmp_path)
    assert set(made.labels) == {"tpux-store", "tpux-user", "tpux-job"}
    assert "PATH" in made.resolved


def test_a_worker():
    assert worker(1, slice=1, address="10.0.0.2", port="22").details == {"port": "22"}
    assert worker(1, address="10.0.0.2").internal_ip == "10.0.0.2"


class Broken:
    @hookimpl
    def check(self):
        yield sh("false")

    @hookimpl
    def setup(self):
        raise AttributeError("no such thing")


def test_a_job_with_a_broken_plugin_fails_as_with_a_supervisor():
    run = run_job({"setup": {"modules": ["broken"]}}, plugins={"broken": Broken()})
    assert (run.state, run.failure.kind) == ("failed", "plugin")
    assert "plugin broken failed in setup: AttributeError: no such thing" in run.why


def test_an_attempt_with_logs_and_codes():
    made = attempt({0: "fine", 1: b"\xff"}, {0: 0, 1: None}, machines="preempted")
    assert [(end.worker, end.code, end.log.read_bytes()) for end in made.endings] == [
        (0, 0, b"fine"),
        (1, None, b"\xff"),
    ]
    assert made.machines.state == "preempted"
    [ending] = attempt("boom").endings
    assert (ending.code, ending.log.read_text()) == (1, "boom")


def test_steps_with_answers():
    hooks, config = Apt(), AptSection(packages=["a b"])
    taken = steps_of(hooks.setup(config))
    assert [type(step).__name__ for step in taken.steps] == ["Sh", "Put", "Sh"]
    assert taken.steps[2].script == "touch 'a b' # x86_64"
    assert (taken.value, taken.failed) == (None, None)
    assert steps_of(hooks.setup(config), {"uname": "arm"}).steps[2].script.endswith("# arm")
    failed = steps_of(hooks.setup(config), answers={"uname -m": 127})
    assert failed.failed == failed.steps[-1] == failed.steps[0]
    assert steps_of(hooks.check(config), {"test": Result(0)}).failed is None
    assert steps_of(of_a_value()).value == "x86_64"
    with pytest.raises(ValueError, match="no step contains 'unmae'"):
        steps_of(hooks.setup(config), {"unmae": "arm"})


def of_a_value():
    """What a hook may be made of: a generator that returns something."""
    return (yield sh("uname -m", example="x86_64")).text


def test_prepare_returns_the_setup():
    prepared = prepare("apt", APT["apt"], plugin=Apt())
    assert [result.ok for result in prepared.results] == [True, True, True]
    assert "$ touch htop jq" in prepared.log


def test_a_job_runs_in_a_temporary_home():
    before = dict(os.environ)
    run = run_job(
        {
            **APT,
            "job": {"max_restarts": {"program": 1}, "rule": "resume"},
            "command": {"cmd": "ls -d h* j*; echo $TPUX_ATTEMPT; [ $TPUX_ATTEMPT = 2 ]"},
        },
        plugins={"apt": Apt()},
    )
    assert (run.state, run.attempts, run.failure) == ("succeeded", 2, None)
    assert run.output == {0: "htop\njq\n2\n"}
    assert "$ touch htop jq" in run.logs["apt_worker_0.log"]
    assert sum(isinstance(event, events.AttemptEnded) for event in run.events) == 2
    assert dict(os.environ) == before


def test_a_job_that_fails_and_its_home_is_kept(tmp_path):
    run = run_job("command: {cmd: exit 3}", home=tmp_path / "kept")
    assert (run.state, run.failure.kind) == ("failed", "program")
    assert list((tmp_path / "kept/.tpux/jobs").glob("*/0*")) == [], "the job is deleted, and its machines released"


def test_the_processes_of_a_job_end_with_it():
    with pytest.raises(tpux.TpuxError, match="still running after 1 s"):
        run_job("command: {cmd: 'echo $$; exec sleep 86399.25', grace_period: 0}", timeout=1)
    marked = [one for one in Path("/proc").glob("[0-9]*") if b"86399.25" in _read(one / "cmdline")]
    assert not marked


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_fixtures(tpux_home, local_host):
    assert os.environ["TPUX_HOME"] == str(tpux_home)
    assert Path.home() == tpux_home.parent
    one, two = local_host(), local_host(PATH="/usr/bin:/bin")
    assert one.run("pwd").text != two.run("pwd").text
    assert two.run("echo $PATH").text == "/usr/bin:/bin"


def test_every_name_is_exported_and_documented():
    for name in tpux_testing.__all__:
        documentation = getattr(tpux_testing, name).__doc__
        assert "Example:" in documentation or name in {"JobRun", "StepsTaken", "WorkerSteps"}, name
    with pytest.raises(AttributeError):
        tpux_testing.nothing  # noqa: B018


def test_contracts_need_no_pytest_and_its_plugin_imports_little():
    code = (
        "import sys; import tpux_testing.fixtures; assert 'pydantic' not in sys.modules; "
        "sys.modules['pytest'] = None; from tpux_testing import *; hooks_contract('local'); prepare"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
