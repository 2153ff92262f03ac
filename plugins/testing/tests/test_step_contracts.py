"""Wrong modules, environments, detectors and listeners are rejected, each with a message that says what is wrong."""

from __future__ import annotations

import itertools
import os
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import Field
from tests.test_cgroups import own_cgroup

from tpux import Failure, Section, events, hookimpl, put, sh
from tpux_testing import (
    ContractError,
    detector_contract,
    environment_contract,
    listener_contract,
    module_contract,
    prepare,
)

_numbers = itertools.count()


class Module:
    """A module that keeps the contract."""

    @hookimpl
    def check(self):
        yield sh("grep -qx done conf")

    @hookimpl
    def setup(self):
        yield put(b"done\n", "conf.new")
        yield sh("mv conf.new conf")
        yield sh("true")


class NothingToCheck(Module):
    @hookimpl
    def check(self):
        yield sh("true")


class ChecksSomethingElse(Module):
    @hookimpl
    def check(self):
        yield sh("echo not here; false")


class CheckWrites(Module):
    @hookimpl
    def check(self):
        yield sh("touch seen; grep -qx done conf")


class Appends(Module):
    @hookimpl
    def setup(self):
        yield sh("echo done >>conf")


class NotRepeatable(Module):
    @hookimpl
    def setup(self):
        yield sh("[ -e conf ] || mkdir half")
        yield sh("rm -rf half; echo done >conf")


class Random(Module):
    @hookimpl
    def setup(self):
        yield sh("echo done >conf # {number}", number=next(_numbers))


class CleansUpOnce(Module):
    @hookimpl
    def clean_up(self):
        yield sh("[ ! -e conf ] || rm conf once || rm once")


class CleansUpEvenMore(Module):
    @hookimpl
    def clean_up(self):
        yield sh("if [ -e conf ]; then echo again >>cleaned; fi")


class CleansUpNothing(Module):
    @hookimpl
    def clean_up(self):
        yield sh("touch cleaned")


class CleansUpUnchecked(Module):
    @hookimpl
    def setup(self):
        yield sh("echo done >conf; touch data")

    @hookimpl
    def clean_up(self, released):
        if released:
            yield sh("rm -f data")


class CleansUpAtRandom(Module):
    @hookimpl
    def clean_up(self):
        yield sh("rm -f conf # {number}", number=next(_numbers))


class Raises(Module):
    @hookimpl
    def setup(self):
        yield sh("true")
        raise AttributeError("no such thing")


class NoGenerator(Module):
    @hookimpl
    def setup(self):
        return ["ls"]


class Fails(Module):
    @hookimpl
    def setup(self):
        yield sh("echo no network; exit 4")


class Neither:
    @hookimpl
    def on_event(self):
        return None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (NothingToCheck, "hook check: it succeeds on a new worker, before anything was set up"),
        (
            ChecksSomethingElse,
            "hook check: after a setup that succeeded, `echo not here; false` failed with exit code 1",
        ),
        (CheckWrites, "hook check: it changed ~/seen; a check only looks"),
        (Appends, "hook setup: run again, with nothing left to do, it changed ~/conf"),
        (NotRepeatable, "hook setup: cut off after step 1 (`[ -e conf ] || mkdir half`) and run again,"),
        (Random, "is run again with the same results, as after a crash"),
        (
            CleansUpOnce,
            "hook clean_up: after a setup that succeeded, `[ ! -e conf ] || rm conf once || rm once` failed",
        ),
        (CleansUpEvenMore, "after a setup that succeeded, it changed ~/cleaned when it was called again"),
        (CleansUpNothing, "hook clean_up: on a new worker, with nothing to remove, it changed ~/cleaned"),
        (
            CleansUpUnchecked,
            "hook check: it succeeds after a clean-up (released=True), although the setup then changes",
        ),
        (CleansUpAtRandom, "hook clean_up: step 1 was"),
        (Raises, "plugin fake failed in setup: AttributeError: no such thing"),
        (NoGenerator, "plugin fake gave a wrong answer from setup: expected a generator of steps"),
        (Fails, "hook setup: on a new worker `echo no network; exit 4` failed with exit code 4: no network"),
        (Neither, "a module implements setup, check, or both"),
    ],
)
def test_wrong_modules(plugin, message):
    with pytest.raises(ContractError) as error:
        module_contract("fake", plugin=plugin())
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)


class TokenSection(Section):
    """A section with a secret."""

    token: str = Field(description="The token.")


class Login(Module):
    """A module that keeps a secret on the worker for one step."""

    @hookimpl
    def config_section(self):
        return TokenSection

    @hookimpl
    def setup(self, config):
        yield put(config.token.encode(), "token")
        yield sh("test -s token; rm token; echo done >conf")

    @hookimpl
    def clean_up(self):
        yield sh("rm -f token conf")


class LeavesToken(Login):
    @hookimpl
    def clean_up(self):
        yield sh("rm -f conf")


class KeepsToken(Login):
    @hookimpl
    def setup(self, config):
        yield put(config.token.encode(), "token")
        yield sh("(cat token; echo; echo done) >conf; rm token")

    @hookimpl
    def clean_up(self):
        yield sh("rm -f token")


class ShowsToken(Login):
    @hookimpl
    def setup(self, config):
        yield sh("echo {token} | wc -c; echo done >conf", token=config.token)


def test_a_module_leaves_no_secret(monkeypatch):
    monkeypatch.setenv("CONTRACT_TOKEN", "canary-4711")
    config = {"token": "${env:CONTRACT_TOKEN}"}
    module_contract("fake", config, plugin=Login())
    for plugin, message in (
        (LeavesToken, "cut off after step 1 (put token) it leaves the value of ${env:NAME} in ./token"),
        (KeepsToken, "hook clean_up: after a setup that succeeded, it leaves the value of ${env:NAME} in ./conf"),
        (
            ShowsToken,
            "hook setup: the script of step 1 contains the value of ${env:CONTRACT_TOKEN}; scripts are logged",
        ),
    ):
        with pytest.raises(ContractError) as error:
            module_contract("fake", config, plugin=plugin())
        assert message in str(error.value)
        assert "canary" not in str(error.value)


class Logs(Module):
    @hookimpl
    def setup(self):
        yield sh("mkdir -p log; date +%N >>log/setup; echo done >conf")


def test_right_modules(local_host):
    module_contract("fake", plugin=Module())
    with pytest.raises(ContractError, match="~/log/setup"):
        prepare("fake", plugin=Logs())
    prepare("fake", plugin=Logs(), ignore=["log/*"], new_host=local_host)


# --- environments -------------------------------------------------------------------------------


class Environment:
    """An environment that replaces the command's arguments."""

    def __init__(self, *argv: str) -> None:
        self.argv = argv

    @hookimpl
    def run(self, command):
        return replace(command, argv=(*self.argv, *command.argv))


class Clears(Environment):
    """Runs the program in an environment without the variables that mark the processes of a run."""

    @hookimpl
    def run(self, command):
        kept = {name: value for name, value in command.env.items() if name not in {"TPUX_RUN_ID", "TPUX_RUN_HOME"}}
        kept = command.env if "all" in self.argv else kept
        variables = (f"{name}={value}" for name, value in {**kept, "PATH": "/usr/bin:/bin"}.items())
        return replace(command, argv=("env", "-i", *variables, *command.argv))


class Lines(Environment):
    """Passes each variable on as a line, as a file of variables for a container does."""

    @hookimpl
    def run(self, command):
        variables = (f"{name}={value.splitlines()[0] if value else ''}" for name, value in command.env.items())
        return replace(command, argv=("env", *variables, *command.argv))


class NoCommand:
    @hookimpl
    def run(self):
        return None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        pytest.param(
            Clears(),
            "hook run: processes that the program started are alive after a stop",
            marks=pytest.mark.skipif(
                (cgroup := own_cgroup()) is not None and os.access(cgroup, os.W_OK),
                reason="a stop finds them in the program's cgroup, which can be made here",
            ),
        ),
        (Environment("env", "-i"), "a variable of `command.env` (secret) does not reach the script"),
        (Lines(), "an argument or a variable of the program arrived as b"),
        (Environment("sh", "-c", '"$@"; true', "sh"), "hook run: a script that exits with 7 ended with 0"),
        (Environment("sh", "-c", '"$@" 2>/dev/null', "sh"), "what the script wrote to stderr is lost"),
        (Environment("sh", "-c", 'trap "" TERM; "$@"', "sh"), "hook run: SIGTERM does not reach the script"),
        (
            NoCommand(),
            "run: the command was not run: plugin fake gave a wrong answer from run: expected",
        ),
        (Module(), "hook run: an environment implements run"),
    ],
)
def test_wrong_environments(plugin, message, monkeypatch):
    number = secrets.randbelow(10**12)  # that of the contract, which other tests do not have
    monkeypatch.setattr("tpux_testing.environments.secrets.randbelow", lambda _: number)
    with pytest.raises(ContractError) as error:
        environment_contract("fake", plugin=plugin)
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)
    assert len(str(error.value)) < 500, "without the generated values"
    assert not [one for one in Path("/proc").glob("[0-9]*") if b"%012d" % number in _read(one / "cmdline")]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("plugin", [Environment(), Clears("all")], ids=["unchanged", "env -i"])
def test_right_environments(plugin):
    environment_contract("fake", plugin=plugin)


# --- detectors and listeners --------------------------------------------------------------------

LINE = "RESOURCE_EXHAUSTED: out of memory"


class Detector:
    """Finds a line; `flaw` says what is wrong about it."""

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.calls = 0

    @hookimpl
    def classify_failure(self, attempt):
        self.calls += 1
        found = []
        for end in attempt.endings:
            if self.flaw == "text":
                lines = end.log.read_text().splitlines()
            elif not end.log.exists() and self.flaw != "missing":
                continue
            else:
                lines = end.log.read_bytes().decode(errors="replace").replace("\r", "\n").splitlines()
            if self.flaw == "first lines":
                lines = lines[:100]
            if self.flaw == "writes":
                end.log.write_text("")
            if self.flaw == "success" and "loss" in "".join(lines):
                found.append(Failure("program", end.worker, "loss"))
            if LINE in lines:
                worker = {"worker": 9, "worker 0": 0}.get(self.flaw, end.worker)
                evidence = f"found: {LINE}" if self.flaw == "evidence" else LINE
                found.append(Failure("oom" if self.flaw == "kind" else "out-of-memory", worker, evidence))
        if self.flaw == "state":
            found.append(Failure("program", 0, str(self.calls)))
        return found


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        (
            "text",
            "with output that is not UTF-8 as the log: plugin fake failed in classify_failure: UnicodeDecodeError",
        ),
        ("missing", "with a log that does not exist, since the worker was lost"),
        ("writes", "hook classify_failure: it changed a log"),
        ("success", "exit codes 0 and ordinary output: it reports"),
        ("first lines", "in the log of worker 0 is not found as 'out-of-memory'"),
        ("worker", "it names worker 9; the attempt has [0, 1]"),
        ("worker 0", "in the log of worker 1 is not found"),
        ("evidence", "is not in the log; quote the line"),
        ("kind", "kind: expected 'preempted', 'maintenance'"),
        ("state", "called twice for the same attempt, it reports"),
    ],
)
def test_wrong_detectors(flaw, message):
    with pytest.raises(ContractError) as error:
        detector_contract("fake", {LINE: "out-of-memory"}, plugin=Detector(flaw))
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)


class Words(Section):
    """Words."""

    words: list[str] = Field(default_factory=list)
    """The words."""


class DetectorWithSection(Detector):
    """Relies on a section that not every job has: fails where it is absent, or where it is empty."""

    @hookimpl
    def config_section(self):
        return Words

    @hookimpl
    def classify_failure(self, config, attempt):
        words = config.words if self.flaw == "absent" else config.words[0] if config else ""
        assert isinstance(words, (list, str))


@pytest.mark.parametrize(
    ("flaw", "what"),
    [("absent", "whose config has no section fake"), ("empty", "whose section fake is empty")],
)
def test_a_detector_that_needs_its_section(flaw, what):
    with pytest.raises(ContractError, match=f"for a job {what}.*failed in classify_failure"):
        detector_contract("fake", config={"fake": {"words": ["a"]}}, plugin=DetectorWithSection(flaw))


def test_a_right_detector():
    detector_contract("fake", {LINE: "out-of-memory"}, plugin=Detector())
    with pytest.raises(ContractError, match="a detector implements classify_failure"):
        detector_contract("fake", plugin=Module())


class Listener:
    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.seen: list[str] = []

    @hookimpl
    def on_event(self, job, event):
        if self.flaw == "section":
            job.sections["fake"]
        if self.flaw == "failure" and event.type == "attempt-ended":
            event.failure.kind  # noqa: B018
        if self.flaw == "twice" and event.type == "created":
            assert event.type not in self.seen
        if self.flaw == "newer":
            events.EVENT_TYPES[event.type]
        self.seen.append(event.type)


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        (
            "section",
            "hook on_event: Created, for a job whose config has no section fake: plugin fake failed in on_event",
        ),
        ("failure", "hook on_event: AttemptEnded, for a job whose config has no section fake"),
        ("twice", "hook on_event: Created, "),
        ("newer", "hook on_event: UnknownEvent, "),
    ],
)
def test_wrong_listeners(flaw, message):
    with pytest.raises(ContractError) as error:
        listener_contract("fake", plugin=Listener(flaw))
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)


def test_a_right_listener():
    listener = Listener()
    listener_contract("fake", {}, plugin=listener)
    assert set(listener.seen) >= set(events.EVENT_TYPES)
    with pytest.raises(ContractError, match="a listener implements on_event"):
        listener_contract("fake", plugin=Module())
