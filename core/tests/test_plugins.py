from __future__ import annotations

import ast
import asyncio
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import TypeVar

import pytest
import typer
from typer.testing import CliRunner

import tpux
import tpux.api
import tpux.fields
import tpux_testing
from tpux import (
    Action,
    Allocation,
    Command,
    Denied,
    Failure,
    Finding,
    Job,
    MachineStatus,
    Ready,
    Result,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
    put,
    sh,
)
from tpux.cli.plugins import app
from tpux.config import load
from tpux.errors import TpuxError
from tpux.model.sections import CORE_SECTIONS, CommandSection, JobSection
from tpux.plugin import spec
from tpux.plugin.answers import problem_of
from tpux.plugin.catalog import RESERVED, RULES
from tpux.plugin.connect import GuardedHost, open_host
from tpux.plugin.entrypoints import added_commands, command_help, find, load_command
from tpux.plugin.guard import PluginError
from tpux.plugin.hooks import HookManager
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import HookCall
from tpux.plugin.selected import selected_plugins

Install = Callable[..., Path]
T = TypeVar("T")
GOOD = """
    from tpux import hookimpl
    @hookimpl
    def public_keys(job):
        return ["key of " + __name__]
"""
WORKER = Worker(0)


def job_with(*, allocator: str = "local", modules: tuple[str, ...] = (), **job: object) -> Job:
    sections = {
        "job": JobSection(name="x", **job),
        "tpu": TpuSection(allocation_mode=allocator),
        "command": CommandSection(cmd="true"),
    }
    return Job("000001", "ann", "store", Path(), sections, modules=modules)


def listed(name: str, kind: str = "plugin") -> dict[str, object]:
    result = CliRunner().invoke(app, ["list", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    return next(row for row in rows if (row["name"], row["kind"]) == (name, kind))


# --- what is installed ------------------------------------------------------------------------------


def test_a_working_plugin_is_listed_as_ok(install: Install) -> None:
    install("tpux-fake", GOOD, entries="fake = tpux_fake", version="2.5")
    assert listed("fake") == {
        "name": "fake",
        "kind": "plugin",
        "dist": "tpux-fake",
        "version": "2.5",
        "hooks": ["public_keys"],
        "status": "ok",
        "error": "",
        "hint": "",
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
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
        ("class Own(BaseException): pass\nraise Own('why')", "Own: why"),
        ("from tpux import hookimpl\n@hookimpl\ndef chekc(job): ...", "no hook 'chekc': did you mean 'check'?"),
        (
            "from tpux import hookimpl\n@hookimpl\ndef check(jobb): ...",
            "the hook check has no argument 'jobb': did you mean 'job'?",
        ),
        (
            "from tpux import hookimpl\n@hookimpl\ndef setup(section): ...",
            "the hook setup has no argument 'section': its arguments are job, config, worker, peers",
        ),
        ("def check(job): ...", "it implements no hook"),
    ],
)
def test_a_broken_plugin_affects_no_other(install: Install, code: str, reason: str) -> None:
    install("tpux-bad", code, entries="bad = tpux_bad")
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    row = listed("bad")
    assert row["status"] == "broken"
    assert reason in str(row["error"])
    assert row["hint"]
    assert "\n" not in str(row["error"])
    assert listed("fake")["status"] == "ok"
    with pytest.raises(TpuxError, match=r"the plugin bad is broken"):
        Plugins().load("bad")


@pytest.mark.parametrize("value", ["tpux_bad:nothing", "tpux_bad:NONE", "not a value at all"])
def test_an_entry_point_that_names_nothing_is_broken(install: Install, value: str) -> None:
    install("tpux-bad", "NONE = None", entries=f"bad = {value}")
    assert listed("bad")["status"] == "broken"


@pytest.mark.parametrize(("name", "error"), [("tpu", "reserved"), ("resume", "reserved"), ("Bad!", "not a valid name")])
def test_reserved_and_malformed_names_are_refused_without_an_import(install: Install, name: str, error: str) -> None:
    site = install("tpux-bad", "open(__file__ + '.imported', 'w')", entries=f"{name} = tpux_bad")
    row = listed(name)
    assert row["status"] == "broken"
    assert error in str(row["error"])
    assert row["hint"] == "rename the entry point in tpux-bad"
    assert not list(site.glob("*.imported"))


def test_every_word_of_core_is_reserved() -> None:
    from tpux.lifecycle import policy

    assert set(CORE_SECTIONS) <= RESERVED
    assert set(RULES) == set(policy.RULES)


def test_an_unmet_requirement_is_listed_with_what_to_do(install: Install) -> None:
    site = install("tpux-fake", GOOD, entries="fake = tpux_fake")
    metadata = next(site.glob("tpux_fake*.dist-info")) / "METADATA"
    metadata.write_text(
        metadata.read_text()
        + dedent("""\
            Requires-Dist: tpux-core>=99
            Requires-Dist: pluggy
            Requires-Dist: no-such-dist-here; extra == "more"
            """)
    )
    row = listed("fake")
    assert row["status"] == "warning"
    assert "requires tpux-core>=99 (installed is" in str(row["error"])
    assert "no-such-dist" not in str(row["error"])
    assert row["hint"] == "pip install --upgrade tpux-fake"


def test_an_unmet_requirement_is_the_first_reason_of_a_broken_plugin(install: Install) -> None:
    """A plugin for a newer tpux implements hooks that this one does not have: the hook is not the mistake."""
    site = install("tpux-new", "from tpux import hookimpl\n@hookimpl\ndef chekc(): ...", entries="new = tpux_new")
    metadata = next(site.glob("tpux_new*.dist-info")) / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: tpux-core>=99\n")
    with pytest.raises(TpuxError) as error:
        Plugins().load("new")
    first = r"the plugin new is broken: it requires tpux-core>=99 \(installed is .*\); there is no hook"
    assert re.match(first, str(error.value))
    assert error.value.hint == "pip install --upgrade tpux-new"
    assert str(listed("new")["error"]).count("tpux-core>=99") == 1


def test_a_listener_whose_package_does_not_name_the_hook_is_listed_with_what_to_do(install: Install) -> None:
    base = "from tpux import hookimpl\nclass Base:\n    @hookimpl\n    def on_event(self): pass"
    install("tpux-base", base, entries="base = tpux_base:Base", group="other")
    site = install("tpux-hidden", "import tpux_base\nplugin = tpux_base.Base()", entries="hidden = tpux_hidden:plugin")
    row = listed("hidden")
    assert (row["status"], row["hooks"], row["hint"]) == ("warning", ["on_event"], "write `on_event` in it")
    assert "so no supervisor calls it" in str(row["error"])
    assert "hidden" not in Plugins().listeners()
    module = site / "tpux_hidden.py"
    module.write_text("# It inherits on_event.\n" + module.read_text())
    assert "hidden" in Plugins().listeners()


@pytest.mark.parametrize("hook", ["config_section", "tpu_section"])
@pytest.mark.parametrize(
    ("body", "message"),
    [("return dict", "gave a wrong answer from {}: expected"), ("raise ValueError('why')", "failed in {}: ValueError")],
)
def test_a_section_that_cannot_be_used_is_listed(install: Install, hook: str, body: str, message: str) -> None:
    code = f"from tpux import hookimpl\n@hookimpl\ndef {hook}(): {body}\n@hookimpl\ndef check():\n    yield"
    install("tpux-bad", code, entries="bad = tpux_bad")
    row = listed("bad")
    assert (row["status"], row["hooks"]) == ("broken", ["check", hook])
    assert f"plugin bad (tpux-bad 1.0) {message.format(hook)}" in str(row["error"])
    assert "report it to the authors" in str(row["hint"])


def test_commands_have_rows_of_their_own(install: Install) -> None:
    install("tpux-cmd", "import typer\napp = typer.Typer()", entries="greet = tpux_cmd:app", group="tpux.commands")
    install("tpux-odd", "app = 1", entries="odd = tpux_odd:app", group="tpux.commands")
    install("tpux-shadow", "import typer\napp = typer.Typer()", entries="list = tpux_shadow:app", group="tpux.commands")
    assert listed("greet", "command")["status"] == "ok"
    assert "not a typer.Typer" in str(listed("odd", "command")["error"])
    shadowed = listed("list", "command")
    assert "core has a command of this name" in str(shadowed["error"])
    assert shadowed["hint"] == "rename the entry point in tpux-shadow"


def test_keyboard_interrupt_during_an_import_is_not_caught(install: Install) -> None:
    install("tpux-bad", "raise KeyboardInterrupt", entries="bad = tpux_bad")
    with pytest.raises(KeyboardInterrupt):
        Plugins().load("bad")


def test_keyboard_interrupt_that_an_import_raises_in_another_thread_is_the_plugins(install: Install) -> None:
    install("tpux-bad", "raise KeyboardInterrupt", entries="bad = tpux_bad")
    with pytest.raises(TpuxError, match=r"the plugin bad is broken: KeyboardInterrupt"):
        in_thread(lambda: Plugins().load("bad"))


def test_two_dists_with_the_same_name_are_broken(install: Install) -> None:
    install("tpux-one", "raise SystemExit", entries="twin = tpux_one")
    install("tpux-two", "raise SystemExit", entries="twin = tpux_two")
    row = listed("twin")
    assert row["status"] == "broken"
    assert "tpux-one" in str(row["error"])
    assert "tpux-two" in str(row["error"])
    assert row["hint"] == "uninstall one of them"


def test_one_module_may_have_two_names(install: Install) -> None:
    install("tpux-fake", GOOD, entries="one = tpux_fake\ntwo = tpux_fake")
    assert listed("one")["status"] == listed("two")["status"] == "ok"
    plugins = Plugins()
    answers = [plugins.call_one(name, spec.public_keys, job=job_with()) for name in ("one", "two")]
    assert answers == [["key of tpux_fake"]] * 2


def test_a_disabled_plugin_is_never_imported(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install("tpux-off", "open(__file__ + '.imported', 'w')", entries="off = tpux_off")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "other, off")
    assert listed("off")["status"] == "disabled"
    plugins = Plugins()
    assert "off" not in plugins.names()
    with pytest.raises(TpuxError, match=r"disabled"):
        plugins.load("off")
    plugins.call_each(job_with(), spec.on_event, job=job_with(), event={})
    assert not list(site.glob("*.imported"))


@pytest.mark.parametrize("named", ["tpux-plugin-cloud", "tpux_plugin_Cloud", "cloud"])
def test_a_dist_can_be_disabled(install: Install, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    install("tpux-plugin-cloud", GOOD, entries="vm = tpux_plugin_cloud\nqueue = tpux_plugin_cloud")
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", named)
    assert Plugins().names() == sorted({*Plugins().names(disabled=True)} - {"vm", "queue"})
    assert {"fake", "vm"} < {*Plugins().names(disabled=True)}
    assert listed("vm")["hint"] == f"remove {named} from TPUX_DISABLED_PLUGINS to use it"
    with pytest.raises(TpuxError, match="the plugin queue is disabled") as caught:
        Plugins().load("queue")
    assert caught.value.hint == f"remove {named} from TPUX_DISABLED_PLUGINS to use it"


def test_the_name_of_a_plugin_disables_no_other_plugin_of_a_dist_of_that_name(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("tpux-plugin-cloud", GOOD, entries="vm = tpux_plugin_cloud\ncloud = tpux_plugin_cloud")
    install("tpux-boat", "", entries="boat = tpux_boat:app", group="tpux.commands")
    install("tpux-plugin-boat", GOOD, entries="row = tpux_plugin_boat")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "cloud boat")
    assert {*Plugins().names(disabled=True)} - {*Plugins().names()} == {"cloud"}
    assert "boat" not in added_commands()


def test_a_name_that_disables_nothing_is_reported(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tpux-plugin-cloud", GOOD, entries="vm = tpux_plugin_cloud")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "clowd,vm")
    result = CliRunner().invoke(app, ["list"])
    assert (
        "warning: TPUX_DISABLED_PLUGINS: no plugin 'clowd' is installed\n  hint: did you mean 'cloud'?" in result.output
    )
    assert "'vm'" not in result.output


def test_a_config_with_a_section_of_a_disabled_plugin_is_valid(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "from tpux import hookimpl, sh\n@hookimpl\ndef check(): yield sh('true')"
    install("tpux-fake", code, entries="fake = tpux_fake")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "fake fkae")
    config = tmp_path / "job.yaml"
    config.write_text("fake: {key: 1}\ncommand: {cmd: 'true'}\n")
    assert [(warning.message, warning.hint) for warning in load(config, plugins=Plugins()).warnings] == [
        ("no plugin 'fkae' is installed", "did you mean 'fake'?"),
        ("section 'fake' is ignored: the plugin fake is disabled", "remove fake from TPUX_DISABLED_PLUGINS to use it"),
    ]
    config.write_text("fake: {key: 1}\nsetup: {modules: [fake]}\ncommand: {cmd: 'true'}\n")
    with pytest.raises(TpuxError) as caught:
        load(config, plugins=Plugins())
    assert [(problem.message, problem.hint) for problem in caught.value.problems] == [
        ("module 'fake': the plugin fake is disabled", "remove fake from TPUX_DISABLED_PLUGINS to use it")
    ]


def test_a_plugin_is_imported_when_it_is_first_needed(install: Install) -> None:
    site = install("tpux-fake", GOOD + "\n    open(__file__ + '.imported', 'w')", entries="fake = tpux_fake")
    plugins = Plugins()
    assert "fake" in plugins.names()
    assert not list(site.glob("*.imported"))
    plugins.load("fake")
    assert list(site.glob("*.imported"))


def test_a_dist_with_unreadable_entry_points_affects_no_other(install: Install) -> None:
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
def test_the_hint_for_a_plugin_that_is_not_installed(word: str, hint: str) -> None:
    plugins = Plugins({})
    plugins.add("fake", Fake())
    with pytest.raises(TpuxError, match=r"is not installed|no plugin") as caught:
        plugins.load(word)
    assert caught.value.hint == hint


# --- calls --------------------------------------------------------------------------------------------


class Fake:
    @hookimpl
    def public_keys(self, job: Job) -> list[str]:
        return [f"key for {job.id}"]

    @hookimpl
    def classify_failure(self) -> list[Failure]:
        return [Failure("program")]

    @hookimpl
    def setup(self) -> Iterator[object]:
        got = yield sh("step 1")
        yield sh(f"step 2 after {got}")


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
    def setup(self) -> Iterator[object]:
        yield sh("step 1")
        raise KeyError("oops")


@pytest.fixture
def two() -> Plugins:
    plugins = Plugins({})
    plugins.add("fake", Fake())
    plugins.add("failing", Failing())
    return plugins


def test_an_addressed_call_goes_to_one_plugin(two: Plugins) -> None:
    assert two.call_one("fake", spec.public_keys, job=job_with()) == ["key for 000001"]
    assert two.call_one("fake", spec.classify_failure, attempt=None) == [Failure("program")]
    assert two.call_one("fake", spec.inspect, request=None) is None
    assert two.implements("fake", spec.setup)
    assert not two.implements("fake", spec.check)


def test_results_are_sent_to_a_generator_hook(two: Plugins) -> None:
    steps = two.call_one("fake", spec.setup, job=job_with(), config=None, worker=WORKER)
    assert next(steps) == sh("step 1")
    assert steps.send("that") == sh("step 2 after that")


def test_an_exception_is_logged_and_names_plugin_and_hook(two: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "tpux"), pytest.raises(PluginError) as caught:
        two.call_one("failing", spec.public_keys, job=job_with())
    assert caught.value.message == "plugin failing failed in public_keys: ValueError: no key at all"
    assert (caught.value.plugin, caught.value.hook) == ("failing", "public_keys")
    assert caplog.records[0].exc_info
    with pytest.raises(PluginError, match=r"failed in inspect: it called sys.exit\(1\)"):
        two.call_one("failing", spec.inspect, request=None)


def test_an_exception_between_steps_names_the_plugin(two: Plugins) -> None:
    steps = two.call_one("failing", spec.setup, job=job_with(), config=None, worker=WORKER)
    assert next(steps) == sh("step 1")
    with pytest.raises(PluginError, match=r"plugin failing failed in setup: KeyError: 'oops'"):
        next(steps)


class OwnError(BaseException):
    """Is no Exception."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, OwnError])
def test_every_exception_of_a_plugin_names_it(kind: type[BaseException]) -> None:
    class Raising:
        @hookimpl
        def inspect(self) -> None:
            raise kind("why")

        @hookimpl
        def classify_failure(self) -> list[Failure]:
            raise kind("why")

        @hookimpl
        def setup(self) -> Iterator[object]:
            yield sh("step 1")
            raise kind("why")

    plugins = Plugins({})
    plugins.add("raising", Raising())
    steps = plugins.call_one("raising", spec.setup, job=job_with(), config=None, worker=WORKER)
    calls: dict[str, Callable[[], object]] = {
        "inspect": lambda: plugins.call_one("raising", spec.inspect, request=None),
        "setup": lambda: list(steps),
    }
    for hook, call in calls.items():
        with pytest.raises(PluginError) as caught:
            in_thread(call)
        assert caught.value.message == f"plugin raising failed in {hook}: {kind.__name__}: why"
    [(_, error)] = in_thread(lambda: plugins.call_each(job_with(), spec.classify_failure, attempt=None))
    assert isinstance(error, PluginError)


def in_thread(call: Callable[[], T]) -> T:
    """Call as the supervisor does: in the main thread a KeyboardInterrupt is the user's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_the_users_interrupt_is_not_caught() -> None:
    class Waiting:
        @hookimpl
        def inspect(self) -> None:
            signal.raise_signal(signal.SIGINT)

    plugins = Plugins({})
    plugins.add("waiting", Waiting())
    with pytest.raises(KeyboardInterrupt):
        plugins.call_one("waiting", spec.inspect, request=None)


def test_a_generator_that_does_not_end_names_the_plugin() -> None:
    class Endless:
        @hookimpl
        def setup(self) -> Iterator[object]:
            try:
                yield sh("step 1")
            except GeneratorExit:
                yield sh("step 2")

    plugins = Plugins({})
    plugins.add("endless", Endless())
    steps = plugins.call_one("endless", spec.setup, job=job_with(), config=None, worker=WORKER)
    next(steps)
    with pytest.raises(PluginError, match=r"plugin endless failed in setup: RuntimeError: generator ignored"):
        steps.close()


def test_a_tpux_error_from_a_plugin_is_not_changed(two: Plugins) -> None:
    with pytest.raises(TpuxError, match=r"^quota\n  hint: ask for more$") as caught:
        two.call_one("failing", spec.provision, request=None)
    assert not isinstance(caught.value, PluginError)


def test_a_broadcast_logs_the_error_of_a_plugin_and_returns_it_in_place_of_its_answer(
    two: Plugins, caplog: pytest.LogCaptureFixture
) -> None:
    two.add("another", Fake())
    with caplog.at_level(logging.WARNING, "tpux"):
        answers = two.call_each(job_with(), spec.public_keys, job=job_with())
    (another, keys), (failing, error), (fake, _) = answers
    assert (another, keys, failing, fake) == ("another", ["key for 000001"], "failing", "fake")
    assert isinstance(error, PluginError)
    assert "plugin failing failed in public_keys" in caplog.text


def test_a_broadcast_skips_a_plugin_that_cannot_be_imported(install: Install) -> None:
    install("tpux-bad", "1 / 0", entries="bad = tpux_bad")
    install("tpux-fake", GOOD, entries="fake = tpux_fake")
    answers = dict(Plugins().call_each(job_with(), spec.public_keys, job=job_with()))
    assert answers["fake"] == ["key of tpux_fake"]
    assert "bad" not in answers


# --- pluggy's options -----------------------------------------------------------------------------------


def test_optionalhook_and_specname_work() -> None:
    class Optional:
        @hookimpl(optionalhook=True)
        def a_hook_of_the_next_version(self) -> None: ...

        @hookimpl(specname="public_keys")
        def keys_of_mine(self) -> list[str]:
            return ["k"]

    plugins = Plugins({})
    plugins.add("optional", Optional())
    assert plugins.status("optional").hooks == ["public_keys"]
    assert plugins.call_one("optional", spec.public_keys, job=job_with()) == ["k"]


def test_tryfirst_and_trylast_order_a_broadcast() -> None:
    def plugin(**options: bool) -> object:
        class Detector:
            @hookimpl(**options)
            def classify_failure(self) -> list[Failure]:
                return []

        return Detector()

    plugins = Plugins({})
    for name, options in {"a": {"trylast": True}, "c": {}, "b": {}, "z": {"tryfirst": True}}.items():
        plugins.add(name, plugin(**options))
    assert [name for name, _ in plugins.call_each(job_with(), spec.classify_failure, attempt=None)] == [
        "z",
        "b",
        "c",
        "a",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        "class Bad:\n @hookimpl\n def check(self): ...\n @hookimpl\n def chekc(self): ...",
        "class Bad:\n @hookimpl\n def check(self): ...\n @hookimpl\n def setup(self, jobb): ...",
        "class Bad:\n @hookimpl\n def check(self): ...\n @hookimpl(wrapper=True)\n def setup(self): ...",
    ],
)
def test_a_plugin_that_cannot_be_registered_leaves_nothing_behind(bad: str) -> None:
    names: dict[str, type] = {}
    exec(bad, {"hookimpl": hookimpl}, names)
    manager = HookManager()
    before = set(vars(manager.hook))
    with pytest.raises(TpuxError):
        manager.register_plugin("bad", names["Bad"]())
    assert set(vars(manager.hook)) == before
    assert not any(manager.implementations(hook) for hook in before)
    assert not manager.has_plugin("bad")
    manager.register_plugin("bad", Fake())
    assert manager.implementations("setup")


class Wrapping:
    """Wraps hooks of other plugins."""

    def __init__(self, what: object = None) -> None:
        self.what = what
        self.seen: list[object] = []

    @hookimpl(wrapper=True)
    def public_keys(self) -> Iterator[None]:
        keys = yield
        self.seen.append(keys)
        return [*keys, f"and {self.what}"]

    @hookimpl(wrapper=True)
    def setup(self) -> Iterator[None]:
        steps = yield
        self.seen.append(steps)
        return steps

    @hookimpl(wrapper=True)
    def provision(self) -> Iterator[None]:
        raise AssertionError
        yield


def test_wrappers_of_selected_plugins_only_apply_to_an_addressed_call(two: Plugins) -> None:
    chosen, other = Wrapping("chosen"), Wrapping("other")
    two.add("chosen", chosen)
    two.add("other", other)
    job = job_with(modules=("fake", "chosen"))
    assert two.call_one("fake", spec.public_keys, job=job) == ["key for 000001", "and chosen"]
    assert not two.implements("chosen", spec.public_keys)
    assert two.status("chosen").hooks == ["provision (wrapper)", "public_keys (wrapper)", "setup (wrapper)"]
    assert two.call_one("chosen", spec.public_keys, job=job) is None
    steps = two.call_one("fake", spec.setup, job=job, config=None, worker=WORKER)
    assert inspect.isgenerator(chosen.seen[-1])
    assert next(steps) == sh("step 1")
    assert not other.seen


def test_the_first_selected_plugin_is_the_outermost_wrapper_unless_another_says_tryfirst(two: Plugins) -> None:
    class First(Wrapping):
        @hookimpl(wrapper=True, tryfirst=True)
        def public_keys(self) -> Iterator[None]:
            return [*(yield), "and first"]

    for name, plugin in {"c": First(), "b": Wrapping("b"), "a": Wrapping("a")}.items():
        two.add(name, plugin)
    keys = two.call_one("fake", spec.public_keys, job=job_with(modules=("b", "a", "c")))
    assert keys == ["key for 000001", "and a", "and b", "and first"]


def test_provision_is_not_wrapped() -> None:
    class Allocator(Wrapping):
        @hookimpl(specname="provision")
        def get(self) -> Waiting:
            return Waiting("x")

    plugins = Plugins({})
    plugins.add("cloud", Allocator())
    assert plugins.call_one("cloud", spec.provision, request=None) == Waiting("x")


def test_an_exception_out_of_a_wrapper_names_the_wrapper(two: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    class Raises:
        @hookimpl(wrapper=True)
        def public_keys(self) -> Iterator[None]:
            yield
            raise KeyError("mine")

    two.add("raises", Raises())
    job = job_with(modules=("raises", "fake", "failing"))
    with pytest.raises(PluginError, match=r"plugin raises failed in its wrapper of public_keys of plugin fake: KeyErr"):
        two.call_one("fake", spec.public_keys, job=job)
    with pytest.raises(PluginError, match=r"plugin failing failed in public_keys: ValueError"):
        two.call_one("failing", spec.public_keys, job=job)  # the wrapper sees the exception, and did not cause it
    answers = dict(two.call_each(job, spec.public_keys, job=job))
    assert "plugin raises failed" in str(answers["fake"]), "as pluggy has it: a wrapper's exception is the answer"
    assert "plugin raises failed in its wrapper" in caplog.text


def test_a_wrapper_of_a_hook_without_a_job_is_a_warning(two: Plugins) -> None:
    two.add("chosen", Wrapping("chosen"))
    status = two.status("chosen")
    assert (status.status, status.error) == ("warning", "its wrapper of provision is never called")


def test_a_wrong_answer_of_a_wrapper_is_an_error(two: Plugins) -> None:
    class Spoils:
        @hookimpl(wrapper=True)
        def public_keys(self) -> Generator[None, list[str], int]:
            yield
            return 5

    two.add("spoils", Spoils())
    with pytest.raises(PluginError, match=r"gave a wrong answer from public_keys: .*5"):
        two.call_one("fake", spec.public_keys, job=job_with(modules=("spoils", "fake")))


# --- answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "answer", "problem"),
    [
        ("config_section", dict, "expected a subclass of Section, got <class 'dict'>"),
        ("preflight", "fine", "expected a list of Finding or None, got 'fine'"),
        ("preflight", [Finding("fatal", "x")], "[0].level: expected 'error', 'warning', 'note' or 'ok', got 'fatal'"),
        ("preflight", [None], "[0]: expected Finding, got None"),
        ("provision", None, "expected Ready, Waiting or Denied, got None"),
        ("provision", {"state": "ready"}, "expected Ready, Waiting or Denied, got {'state': 'ready'} (dict)"),
        ("provision", Waiting("x", poll_after="5s"), "poll_after: expected float, got '5s'"),
        ("provision", Waiting("x", poll_after=float("nan")), "poll_after: expected float, got nan (float)"),
        ("provision", Waiting("x", poll_after=-5), "poll_after: expected seconds, 0 or more, got -5"),
        ("inspect", MachineStatus("ready", poll_after=-0.5), "poll_after: expected seconds, 0 or more, got -0.5"),
        ("provision", Waiting("x", saved_state={"at": {1}}), "saved_state['at']: expected JSON data, got {1} (set)"),
        ("provision", Denied(Failure("oom")), "failure.kind: expected 'preempted', "),
        ("provision", Ready(Allocation("n", "local", [WORKER])), "allocation.workers: expected a tuple of Worker, got"),
        (
            "provision",
            Ready(Allocation("n", "local", (Worker(1),))),
            "allocation.workers: expected workers numbered 0,",
        ),
        (
            "provision",
            Ready(Allocation("n", "local", (WORKER,), slices=0)),
            "allocation.slices: expected 1 or more, got 0",
        ),
        (
            "provision",
            Ready(Allocation("", "local", (WORKER,))),
            "allocation.name: expected the name of the machines, in one line, got ''",
        ),
        (
            "provision",
            Ready(Allocation("a\nb", "local", (WORKER,))),
            "allocation.name: expected the name of the machines",
        ),
        ("provision", Denied(Failure("quota", worker=-1)), "failure.worker: expected the number of a worker, got -1"),
        ("run", Command((), "x"), "argv: expected the program and its arguments, got nothing"),
        ("run", Command(("a",), "x", {"A B": "c"}), "env: expected names of variables, got 'A B'"),
        ("prepare_command", Command(("a",), "x", {"A=b": "c"}), "env: expected names of variables, got 'A=b'"),
        ("prepare_command", Command(("a",), "x", {"A": "b\0"}), "env['A']: expected text without a NUL"),
        ("run", Command(("a\0",), "x"), "argv: expected text without a NUL"),
        ("run", Command(("a",), "x", cwd="a\0"), "cwd: expected text without a NUL"),
        ("inspect", MachineStatus("lost"), "state: expected 'ready', 'waiting', "),
        ("release", True, "expected Released or Waiting, got True (bool)"),
        ("connect", object(), "expected Host, got <object object"),
        (
            "inspect",
            MachineStatus("ready", evidence="a\udc80"),
            "evidence: expected text that can be written as UTF-8, got 'a\\udc80'",
        ),
        (
            "provision",
            Waiting("x", saved_state={"\udc80": 1}),
            "a key of saved_state: expected text that can be written as UTF-8",
        ),
        ("run", Command(("a\ud800",), "x"), "argv[0]: expected text that can be written as UTF-8, got 'a\\ud800'"),
        ("public_keys", ["k", 1], "[1]: expected str, got 1 (int)"),
        ("check", [sh("true")], "expected a generator of steps (a function that yields sh(...) or put(...)), got [Sh("),
        ("check", None, "expected a generator of steps"),
        ("run", None, "expected Command, got None"),
        ("run", Command("bash x", "x"), "argv: expected a tuple of str, got 'bash x'"),
        ("run", Command(("bash",), "x", env={"A": 1}), "env['A']: expected str, got 1 (int)"),
        ("classify_failure", [Failure("oom")], "[0].kind: expected 'preempted', "),
        ("classify_failure", Failure("program"), "expected a list of Failure or Finished or None, got Failure("),
        ("on_preempt", "resume", "expected Action, got 'resume'"),
        ("on_preempt", Action("again"), "restart: expected 'resume', 'rerun' or None, got 'again'"),
    ],
)
def test_a_wrong_answer_is_refused(hook: str, answer: object, problem: str) -> None:
    class Wrong:
        pass

    arguments = dict.fromkeys(inspect.signature(getattr(spec, hook)).parameters)

    def implementation(self: object) -> object:
        return answer

    setattr(Wrong, hook, hookimpl(implementation, specname=hook))
    plugins = Plugins({})
    plugins.add("wrong", Wrong())
    with pytest.raises(PluginError) as caught:
        plugins.call_one("wrong", getattr(spec, hook), **arguments)
    assert caught.value.message.startswith(f"plugin wrong gave a wrong answer from {hook}: {problem}")


class Connection:
    """A transport's connection; `answers` replaces its results."""

    worker: object = WORKER

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def run(self, *_: object, **__: object) -> object:
        return self.answers.get("run", Result())

    def follow(self, _: str, listen: Callable[[object], None], **__: object) -> object:
        listen(self.answers.get("piece", b"output"))
        return self.answers.get("follow", 0)

    def put(self, *_: object, **__: object) -> object:
        return "ignored"

    def get(self, *_: object, **__: object) -> object:
        return "ignored"

    def read(self, *_: object) -> object:
        return self.answers.get("read", [b"content", None])

    def close(self) -> None:
        pass


def opened(connection: object) -> GuardedHost:
    class Transport:
        @hookimpl
        def connect(self) -> object:
            return connection

    plugins = Plugins({})
    plugins.add("wrong", Transport())
    return GuardedHost(open_host(plugins, "wrong", WORKER, job_with()), WORKER, plugins, "wrong")


@pytest.mark.parametrize(
    ("method", "answer", "problem"),
    [
        ("run", None, "expected Result, got None"),
        ("run", ("ok", 0), "expected Result, got ('ok', 0) (tuple)"),
        ("run", Result("0"), "code: expected int, got '0'"),  # type: ignore[arg-type]
        ("run", Result(0, "text"), "output: expected bytes, got 'text'"),  # type: ignore[arg-type]
        ("read", None, "expected a list of bytes or None, got None"),
        ("read", ["0", b""], "[0]: expected bytes or None, got '0'"),
        ("read", [b"0"], "expected an item for each of 2 files, got 1"),
        ("follow", None, "expected int, got None"),
    ],
)
def test_a_wrong_result_of_a_connection_is_refused(method: str, answer: object, problem: str) -> None:
    host = opened(Connection(**{method: answer}))
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: host.run("true"),
        "read": lambda: host.read(("a", 0), ("b", 0)),
        "follow": lambda: host.follow("true", lambda _: None),
    }
    with pytest.raises(PluginError) as caught:
        calls[method]()
    assert caught.value.message == f"plugin wrong gave a wrong answer from Host.{method}: {problem}"
    for name, call in calls.items():
        assert name == method or call() is not None
    host.put(b"", "x")


def test_output_of_a_connection_that_is_not_bytes_is_refused() -> None:
    received: list[bytes] = []
    with pytest.raises(PluginError, match=r"from Host.follow: a piece of output: expected bytes, got 'text'"):
        opened(Connection(piece="text")).follow("true", received.append)
    assert received == []


def test_a_connection_without_a_method_is_refused() -> None:
    lacking = Connection()
    lacking.read = None  # type: ignore[assignment, method-assign]
    with pytest.raises(PluginError, match=r"from connect: expected Host, got .*, which has no method read"):
        opened(lacking)


def test_a_command_may_have_arguments_and_variables_that_are_not_utf8() -> None:
    command = Command(("cat", "a\udc80"), "x\udc80", env={"A": "\udcff"})
    assert problem_of(spec.run, command) == ""


def test_a_wrong_answer_names_the_dist(install: Install) -> None:
    install(
        "tpux-wrong", "from tpux import hookimpl\n@hookimpl\ndef preflight(): return 'x'", entries="wrong = tpux_wrong"
    )
    with pytest.raises(PluginError) as caught:
        Plugins().call_one("wrong", spec.preflight, job=job_with())
    assert caught.value.message.startswith("plugin wrong (tpux-wrong 1.0) gave a wrong answer from preflight: expected")
    assert "tpux-wrong 1.0" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "problem"),
    [("/nonexistent/file", "No such file or directory"), ("/", "it is a directory"), ("a\0b", "null")],
)
def test_a_file_to_copy_that_cannot_be_read_is_refused(source: str, problem: str) -> None:
    class Copying:
        @hookimpl
        def setup(self) -> Iterator[object]:
            yield put(source, "x")

        @hookimpl
        def run(self) -> Command:
            return Command(("true",), "x", stop=(put(source, "x"),))

    plugins = Plugins({})
    plugins.add("copying", Copying())
    with pytest.raises(PluginError, match=rf"from setup: step\.source: expected a file that can be read, .*{problem}"):
        next(plugins.call_one("copying", spec.setup, job=job_with(), config=None, worker=WORKER))
    with pytest.raises(PluginError, match=rf"from run: stop\[0\]\.source: expected a file .*{problem}"):
        plugins.call_one("copying", spec.run, job=job_with(), config=None, command=None, worker=WORKER)


def test_wrong_steps_are_refused_when_they_are_yielded() -> None:
    class Wrong:
        @hookimpl
        def check(self) -> Iterator[object]:
            yield put(b"", "x")
            yield "true"

        @hookimpl
        def setup(self) -> Iterator[object]:
            yield sh("true")
            return False

    plugins = Plugins({})
    plugins.add("wrong", Wrong())
    steps = plugins.call_one("wrong", spec.check, job=job_with(), config=None, worker=WORKER)
    next(steps)
    with pytest.raises(PluginError, match=r"wrong answer from check: step: expected Sh or Put, got 'true'"):
        next(steps)
    steps = plugins.call_one("wrong", spec.setup, job=job_with(), config=None, worker=WORKER)
    next(steps)
    with pytest.raises(PluginError, match=r"setup: the value returned after the steps: expected None, got False"):
        next(steps)


def test_every_hook_has_a_return_annotation_that_can_be_validated() -> None:
    for hook in published_hooks():
        problem_of(getattr(spec, hook), object())
    assert problem_of(spec.run, Command(("bash", "x"), "x", env={"A": "b"}, stop=(sh("true"),))) == ""
    ready = Ready(Allocation("n", "local", (WORKER,)), saved_state={"a": [1, {"b": None}]})
    assert problem_of(spec.provision, ready) == ""


# --- steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["~", "~/data", ["a", "~/data"], Path("~/data")])
def test_a_quoted_home_directory_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"does not expand a quoted ~: use a path relative to the home .*\$HOME/"):
        sh("ls {path}", path=value)
    assert sh("ls $HOME/{path}", path="a/b").script == "ls $HOME/a/b"


def test_an_unknown_attribute_of_a_result_names_the_existing_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'stdout': it has code, ok, output \(bytes\) and text"):
        _ = Result(0, b"x").stdout  # type: ignore[attr-defined]


# --- the contract -------------------------------------------------------------------------------------


def published_hooks() -> list[str]:
    return [name for name, value in vars(spec).items() if getattr(value, f"{spec.PROJECT}_spec", None)]


def called_hooks() -> set[str]:
    """Return the hooks that core hands to a function that calls them; `tpux_testing` is not a caller."""
    source = Path(inspect.getfile(tpux)).parent
    found: set[str] = set()
    for path in source.rglob("*.py"):
        if "testing" in path.relative_to(source).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and CALLERS.search(ast.unparse(node.func)):
                given = map(ast.unparse, node.args)
                found.update(hook.removeprefix("spec.") for hook in given if hook.startswith("spec."))
    return found


CALLERS = re.compile(r"\b(call_one|call_each|_call|_call_allocator|_run_hook)$")


def test_every_hook_is_called_by_core() -> None:
    assert sorted(set(published_hooks()) - called_hooks()) == []


def test_the_exported_names_are_listed_and_importable() -> None:
    assert tpux.API_VERSION == 1
    assert {"hookimpl", "Section", "sh", "API_VERSION"} <= set(dir(tpux))
    groups = (tpux, tpux.fields, tpux.api, tpux_testing)
    for group in groups:
        assert set(group.__all__) <= set(dir(group))
        for name in group.__all__:
            getattr(group, name)
    with pytest.raises(AttributeError, match="has no attribute 'hookimp'"):
        _ = tpux.hookimp  # type: ignore[attr-defined]


# --- which plugins a job selects ----------------------------------------------------------------------


def test_selected_are_allocator_transport_modules_environment_and_a_rule_plugin() -> None:
    class CloudSection(TpuSection):
        transport = "wire"

    job = job_with(allocator="cloud", modules=("a", "b"), rule="keep-going")
    assert selected_plugins(job) == ("cloud", "a", "b", "keep-going")
    job = replace(job, sections={**job.sections, "tpu": CloudSection(allocation_mode="cloud")}, environment="docker")
    assert selected_plugins(job) == ("cloud", "wire", "a", "b", "docker", "keep-going")
    assert selected_plugins(job_with(rule="resume")) == ("local",)


# --- output -------------------------------------------------------------------------------------------


def test_output_of_plugin_code_goes_to_stderr(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
        from tpux import hookimpl, sh
        print("importing")
        @hookimpl
        def public_keys():
            print("in a hook")
        @hookimpl
        def check():
            print("between steps")
            yield sh("true")
    """
    install("tpux-loud", code, entries="loud = tpux_loud")
    plugins = Plugins()
    plugins.call_one("loud", spec.public_keys, job=job_with())
    for _ in plugins.call_one("loud", spec.check, job=job_with(), config=None, worker=WORKER):
        sys.stdout.write("core\n")
    captured = capsys.readouterr()
    assert captured.out == "core\n"
    assert captured.err == "importing\nin a hook\nbetween steps\n"


def test_other_threads_keep_their_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    inside, printed = threading.Event(), threading.Event()

    class Slow:
        @hookimpl
        def public_keys(self) -> None:
            inside.set()
            assert printed.wait(60)
            sys.stdout.write("plugin\n")

    plugins = Plugins({})
    plugins.add("slow", Slow())
    thread = threading.Thread(target=lambda: plugins.call_one("slow", spec.public_keys, job=job_with()))
    thread.start()
    assert inside.wait(60)
    sys.stdout.write("core\n")
    printed.set()
    thread.join()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("core\n", "plugin\n")


# --- commands -----------------------------------------------------------------------------------------


def test_added_commands(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tpux-cmd", "import typer\napp = typer.Typer()", entries="cmd = tpux_cmd:app", group="tpux.commands")
    install("tpux-odd", "app = 1", entries="odd = tpux_odd:app", group="tpux.commands")
    install("tpux-sad", "1 / 0", entries="sad = tpux_sad:app", group="tpux.commands")
    install("tpux-off", "", entries="off = tpux_off:app", group="tpux.commands")
    monkeypatch.setenv("TPUX_DISABLED_PLUGINS", "off")
    commands = added_commands()
    assert "tpux_cmd" not in sys.modules
    assert isinstance(load_command(commands["cmd"]), typer.Typer)
    with pytest.raises(TpuxError, match=r"is a int, not a typer.Typer"):
        load_command(commands["odd"])
    with pytest.raises(TpuxError, match=r"command sad .*ZeroDivisionError"):
        load_command(commands["sad"])
    assert "off" not in commands


def test_the_command_lists_what_is_on_the_path(install: Install) -> None:
    site = install("tpux-fake", GOOD, entries="fake = tpux_fake")
    install("tpux-bad", "print('shouted'); import sys; sys.exit(1)", entries="bad = tpux_bad")
    command = [sys.executable, "-m", "tpux.cli.main", "plugins", "list"]
    environ = {**os.environ, "PYTHONPATH": str(site), "TPUX_DISABLED_PLUGINS": "fake"}
    table = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert table.returncode == 0
    lines = {line.split()[0]: line for line in table.stdout.splitlines()}
    assert "disabled" in lines["fake"]
    assert "broken" in lines["bad"]
    assert "broken: plugin bad (tpux-bad 1.0): it called sys.exit(1)\n  hint: " in table.stderr
    assert "shouted" not in table.stdout
    json.loads(subprocess.run([*command, "--json"], env=environ, capture_output=True, text=True).stdout)


def test_importing_the_packages_is_cheap() -> None:
    code = """if True:
        import sys, tpux.api, tpux.config, tpux.plugin.entrypoints, tpux.plugin.catalog
        import tpux.cli.config, tpux.cli.plugins
        heavy = ("pydantic", "ruamel.yaml", "pluggy", "rich", "packaging")
        print([name for name in heavy if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_help_has_what_a_command_does_without_importing_it(install):
    text = '"""`tpux tally`: count your jobs by state.\n\nMore."""\nraise RuntimeError\n'
    install("tpux-tally", text, entries="tally = tpux_tally:app", group="tpux.commands")
    install("tpux-sum", text.replace("tally`", "sum` (Watch)"), entries="sum = tpux_sum:app", group="tpux.commands")
    install("tpux-quiet", "app = 1", entries="quiet = tpux_quiet:app", group="tpux.commands")
    install("tpux-torn", "def", entries="torn = tpux_torn:app", group="tpux.commands")
    install("tpux-gone", "", entries="gone = tpux_not_here.cli:app", group="tpux.commands")
    assert command_help(find("tpux.commands")["tally"]) == ("", "Count your jobs by state.")
    assert command_help(find("tpux.commands")["sum"]) == ("Watch", "Count your jobs by state.")
    for name in ("quiet", "torn", "gone"):
        assert command_help(find("tpux.commands")[name]) == ("", f"see: tpux {name} --help")
    if find("tpux.commands").get("ssh-config"):  # a module in a package
        assert command_help(find("tpux.commands")["ssh-config"])[1].startswith("Print OpenSSH Host blocks")


def test_an_answer_is_shown_without_secrets_and_whatever_it_is() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    def shown(hook: str, answer: object) -> object:
        return HookCall("cloud", hook, None, 0.1, 0.1, None, "answered", "", answer).shown({"s3cret"})["answer"]

    assert shown("storage_options", {"token": "of-the-cloud"}) == "{'token': '********'}"
    assert shown("resolve", {"key": "s3cret"}) == "{'key': '********'}"
    assert shown("connect", Odd()) == "Odd, which cannot be shown: no"
    assert shown("resolve", None) == ""
