from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tpux import hookimpl
from tpux.cli.plugins import app
from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import command_plugins
from tpux.plugin.manager import Plugins

Install = Callable[..., Path]
GOOD = """
    from tpux import hookimpl
    @hookimpl
    def public_keys(job):
        return ["key of " + __name__]
"""


def listed(name: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["list", "--json"])
    assert result.exit_code == 0, result.output
    return next(row for row in json.loads(result.stdout) if row["name"] == name)


def test_a_good_plugin_is_ok(install: Install) -> None:
    install("tpux-fake", GOOD, entries="fake = tpux_fake", version="2.5")
    assert listed("fake") == {
        "name": "fake",
        "dist": "tpux-fake",
        "version": "2.5",
        "hooks": ["public_keys"],
        "status": "ok",
        "error": "",
    }


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('cannot')", "ImportError: cannot"),
        ("import no_such_module", "the module 'no_such_module' is not installed"),
        ("import sys; sys.exit(3)", "it called sys.exit(3)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def (", "SyntaxError"),
        ("from tpux import hookimpl\n@hookimpl\ndef chekc(job): ...", "no hook 'chekc': did you mean 'check'?"),
        ("from tpux import hookimpl\n@hookimpl\ndef check(jobb): ...", "jobb"),
    ],
)
def test_a_broken_plugin_costs_its_row_only(install: Install, code: str, reason: str) -> None:
    install("tpux-bad", code, entries="bad = tpux_bad")
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    row = listed("bad")
    assert row["status"] == "broken"
    assert reason in str(row["error"])
    assert "\n" not in str(row["error"])
    assert listed("fake")["status"] == "ok"
    with pytest.raises(TpuxError, match=r"the plugin bad is broken") as caught:
        Plugins().load("bad")
    assert "tpux-bad 1.0" in caught.value.hint


@pytest.mark.parametrize("value", ["tpux_bad:nothing", "tpux_bad:NONE", "not a value at all"])
def test_an_entry_point_that_names_nothing_is_broken(install: Install, value: str) -> None:
    install("tpux-bad", "NONE = None", entries=f"bad = {value}")
    assert listed("bad")["status"] == "broken"


def test_ctrl_c_at_import_is_no_broken_plugin(install: Install) -> None:
    install("tpux-bad", "raise KeyboardInterrupt", entries="bad = tpux_bad")
    with pytest.raises(KeyboardInterrupt):
        Plugins().load("bad")


def test_two_dists_of_one_name_are_broken(install: Install) -> None:
    install("tpux-one", "raise SystemExit", entries="twin = tpux_one")
    install("tpux-two", "raise SystemExit", entries="twin = tpux_two")
    row = listed("twin")
    assert row["status"] == "broken"
    assert "tpux-one" in str(row["error"])
    assert "tpux-two" in str(row["error"])


def test_one_object_may_have_two_names(install: Install) -> None:
    install("tpux-fake", GOOD, entries="one = tpux_fake\ntwo = tpux_fake")
    assert listed("one")["status"] == listed("two")["status"] == "ok"


def test_a_disabled_plugin_is_never_imported(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install("tpux-off", "open(__file__ + '.imported', 'w')", entries="off = tpux_off")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "other, off")
    assert listed("off")["status"] == "disabled"
    plugins = Plugins()
    assert "off" not in plugins.names()
    with pytest.raises(TpuxError, match=r"disabled"):
        plugins.load("off")
    plugins.call_all(spec.on_event, job=JOB, event={})
    assert not list(site.glob("*.imported"))


def test_nothing_is_imported_before_it_is_needed(install: Install) -> None:
    site = install("tpux-fake", GOOD + "\n    open(__file__ + '.imported', 'w')", entries="fake = tpux_fake")
    plugins = Plugins()
    assert "fake" in plugins.names()
    assert not list(site.glob("*.imported"))
    plugins.load("fake")
    assert list(site.glob("*.imported"))


def test_a_dist_with_unreadable_entry_points_costs_no_other(install: Install) -> None:
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    install("tpux-torn", entries="this line has no equals sign")
    assert listed("fake")["status"] == "ok"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("docker", "pip install tpux-plugin-docker"),
        ("tpu-vm", "pip install tpux-plugin-gcp"),
        ("dcoker", "did you mean 'docker'? (pip install tpux-plugin-docker)"),
        ("fkae", "did you mean 'fake'?"),
        ("zzzzz", "installed are fake"),
    ],
)
def test_a_plugin_that_is_not_installed_says_what_to_do(word: str, hint: str) -> None:
    plugins = Plugins({})
    plugins.add("fake", Fake())
    with pytest.raises(TpuxError, match=r"is not installed|no plugin") as caught:
        plugins.load(word)
    assert caught.value.hint == hint


class Fake:
    @hookimpl
    def public_keys(self, job: object) -> list[str]:
        return [f"key for {job}"]

    @hookimpl
    def classify_failure(self) -> list[str]:
        return ["a finding"]

    @hookimpl
    def setup(self) -> Iterator[str]:
        got = yield "step 1"
        yield f"step 2 after {got}"


class Failing:
    @hookimpl
    def public_keys(self) -> list[str]:
        raise ValueError("no key\nat all")

    @hookimpl
    def provision(self) -> None:
        raise TpuxError("quota", hint="ask for more")

    @hookimpl
    def inspect(self) -> None:
        raise SystemExit(1)

    @hookimpl
    def setup(self) -> Iterator[str]:
        yield "step 1"
        raise KeyError("oops")


JOB = "the job"  # what is passed on is none of the plugins' business


@pytest.fixture
def two() -> Plugins:
    plugins = Plugins({})
    plugins.add("fake", Fake())
    plugins.add("failing", Failing())
    return plugins


def test_asking_goes_to_one_plugin(two: Plugins) -> None:
    assert two.call_one("fake", spec.public_keys, job=JOB) == ["key for the job"]
    assert two.call_one("fake", spec.classify_failure, attempt=None) == ["a finding"]
    assert two.call_one("fake", spec.inspect, request=None) is None
    assert two.implements("fake", spec.setup)
    assert not two.implements("fake", spec.check)


def test_steps_are_passed_through(two: Plugins) -> None:
    steps = two.call_one("fake", spec.setup, job=JOB, config=None, worker=None)
    assert next(steps) == "step 1"
    assert steps.send("that") == "step 2 after that"


def test_a_failure_inside_a_plugin_names_it_and_is_logged(two: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "tpux"), pytest.raises(TpuxError) as caught:
        two.call_one("failing", spec.public_keys, job=JOB)
    assert caught.value.message == "the plugin failing failed in its hook public_keys: ValueError: no key at all"
    assert caplog.records[0].exc_info
    with pytest.raises(TpuxError, match=r"hook inspect: it called sys.exit\(1\)"):
        two.call_one("failing", spec.inspect, request=None)


def test_a_failure_between_steps_names_the_plugin(two: Plugins) -> None:
    steps = two.call_one("failing", spec.setup, job=JOB, config=None, worker=None)
    assert next(steps) == "step 1"
    with pytest.raises(TpuxError, match=r"the plugin failing failed in its hook setup: KeyError: 'oops'"):
        next(steps)


def test_a_tpux_error_of_a_plugin_is_its_own(two: Plugins) -> None:
    with pytest.raises(TpuxError, match=r"^quota\n  hint: ask for more$"):
        two.call_one("failing", spec.provision, request=None)


def test_gathering_guards_each(two: Plugins, install: Install, caplog: pytest.LogCaptureFixture) -> None:
    two.add("another", Fake())
    with caplog.at_level(logging.WARNING, "tpux"):
        answers = two.call_all(spec.public_keys, job=JOB)
    assert answers == [("another", ["key for the job"]), ("fake", ["key for the job"])]
    assert "the plugin failing failed in its hook public_keys" in caplog.text


def test_gathering_leaves_out_what_cannot_be_loaded(install: Install) -> None:
    install("tpux-bad", "1 / 0", entries="bad = tpux_bad")
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    answers = dict(Plugins().call_all(spec.public_keys, job=JOB))
    assert answers["fake"] == ["key of tpux_fake"]
    assert "bad" not in answers


def test_command_plugins(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tpux-cmd", "import typer\napp = typer.Typer()", entries="cmd = tpux_cmd:app", group="tpux.commands")
    install("tpux-odd", "app = 1", entries="odd = tpux_odd:app", group="tpux.commands")
    install("tpux-sad", "1 / 0", entries="sad = tpux_sad:app", group="tpux.commands")
    install("tpux-off", "", entries="off = tpux_off:app", group="tpux.commands")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "off")
    commands = command_plugins()
    assert "tpux_cmd" not in sys.modules
    assert isinstance(commands["cmd"](), typer.Typer)
    with pytest.raises(TpuxError, match=r"is no typer.Typer"):
        commands["odd"]()
    with pytest.raises(TpuxError, match=r"command sad .*ZeroDivisionError"):
        commands["sad"]()
    assert "off" not in commands


def test_the_command_sees_what_is_on_the_path(install: Install) -> None:
    site = install("tpux-fake", GOOD, entries="fake = tpux_fake")
    install("tpux-bad", "import sys; sys.exit(1)", entries="bad = tpux_bad")
    command = [sys.executable, "-m", "tpux.cli.main", "plugins", "list"]
    environ = {**os.environ, "PYTHONPATH": str(site), "TPUX_DISABLED_PLUGINS": "fake"}
    table = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert table.returncode == 0
    assert table.stderr == ""
    lines = {line.split()[0]: line for line in table.stdout.splitlines()}
    assert "disabled" in lines["fake"]
    assert "it called sys.exit(1)" in lines["bad"]


def test_importing_the_rooms_is_cheap() -> None:
    code = """if True:
        import sys, tpux.config, tpux.plugin.entrypoints, tpux.plugin.known, tpux.cli.config, tpux.cli.plugins
        print([name for name in ("pydantic", "ruamel.yaml", "pluggy", "rich") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
