"""What a config selects, and that jobman's configs of both generations are accepted unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tpux import Command, Section, config, hookimpl
from tpux.config.resolved import Loaded
from tpux.errors import TpuxError
from tpux.plugin.manager import Plugins

Load = Callable[..., Loaded]
Problems = Callable[..., list[str]]
CONFIGS = Path(__file__).parent / "configs"
MODULES = "ssh: {}\ngcsfuse: {bucket_name: b, mount_path: p}\ndocker: {image: i}\nconda: {}\ncommand: {cmd: x}\n"


@pytest.mark.parametrize(
    ("text", "modules", "environment"),
    [
        ("", ("ssh", "gcsfuse"), None),
        ("job: {env_type: docker}", ("ssh", "gcsfuse", "docker"), "docker"),
        ("job: {env_type: conda}", ("ssh", "gcsfuse", "conda"), "conda"),
        ("job: {env_type: null}\nsetup: {modules: null}", ("ssh", "gcsfuse"), None),
        ("setup: {modules: []}", (), None),
        ("setup: {modules: [docker, command, gcsfuse]}", ("docker", "gcsfuse"), "docker"),
        ("setup: {modules: [gcsfuse, ssh, conda]}", ("gcsfuse", "ssh", "conda"), "conda"),
    ],
)
def test_selected_modules_and_environment(
    read: Load, text: str, modules: tuple[str, ...], environment: str | None
) -> None:
    loaded = read(MODULES + text)
    assert (loaded.modules, loaded.environment) == (modules, environment)


def test_only_the_command_is_required(read: Load) -> None:
    loaded = read("command: {cmd: echo}")
    assert (loaded.modules, loaded.environment, loaded.allocator, loaded.workers) == ((), None, "local", 1)
    assert list(loaded.sections) == ["job", "tpu", "setup", "command", "watch", "solve", "plugins", "ssh"]


def test_null_sections_select_nothing(read: Load) -> None:
    loaded = read("ssh:\ngcsfuse: null\ndocker: ~\ncommand: {cmd: x}\njob:\ntpu:")
    assert loaded.modules == ()


def test_a_listed_module_whose_section_has_no_content_is_left_out(read: Load) -> None:
    loaded = read("setup: {modules: [ssh, gcsfuse, command]}\nssh:\ngcsfuse:\ncommand: {cmd: x}")
    assert loaded.modules == ("ssh",), "ssh needs no content"
    (warning,) = loaded.warnings
    assert (warning.where, warning.message) == (
        "c.yaml:1:24",
        "module gcsfuse is left out: its section has no content",
    )


def test_a_listed_module_without_a_section_needs_one(problems: Callable[..., list[str]]) -> None:
    assert "bucket_name" in problems("setup: {modules: [gcsfuse]}\ncommand: {cmd: x}")[0]


def test_a_section_whose_module_is_not_listed_is_a_warning(read: Load) -> None:
    sections = "gcsfuse: {bucket_name: b, mount_path: p}\nssh: {}\ndocker: {image: i}\ncommand: {cmd: x}\n"
    (warning,) = read(sections + "setup: {modules: [ssh, command]}").warnings
    assert (warning.where, warning.hint) == ("c.yaml:1:1", "add gcsfuse to setup.modules, or remove the section")
    assert "section 'gcsfuse' has no effect: setup.modules does not list gcsfuse" in warning.message
    assert read(sections + "setup: {modules: [ssh, gcsfuse]}").warnings == []
    assert read(sections).warnings == []


class Patterns(Section):
    finished: str = ""
    failed: str = ""

    def needs_finished_by(self) -> list[str]:
        return ["finished"] if self.finished else []

    def never_finished(self) -> str:
        return "" if self.finished else "watcher.finished is not set"


class Watcher:
    @hookimpl
    def config_section(self) -> type[Section]:
        return Patterns

    @hookimpl
    def classify_failure(self) -> None:
        return None


class Tracker(Watcher):
    @hookimpl
    def prepare_command(self, command: Command) -> Command:
        return command


def test_a_section_that_needs_finished_by_is_a_warning_without_it(read: Load, plugins: Plugins) -> None:
    plugins.add("watcher", Watcher())
    plugins.add("tracker", Tracker())
    sections = "watcher: {failed: x}\ntracker:\n  failed: x\n"
    (warning,) = read(f"{sections}command: {{cmd: x}}").warnings
    assert (warning.where, warning.hint) == ("c.yaml:2:1", "add tracker to command.finished_by, or remove the section")
    assert warning.message == "section 'tracker' does not affect the program: command.finished_by does not name tracker"
    assert read(f"{sections}command: {{cmd: x, finished_by: [tracker]}}").warnings == []

    sections = "watcher:\n  failed: x\n  finished: y\n"
    (warning,) = read(f"{sections}command: {{cmd: x}}").warnings
    assert (warning.where, warning.hint) == ("c.yaml:3:13", "add watcher to command.finished_by, or remove the key")
    assert warning.message == "watcher.finished has no effect: command.finished_by does not name watcher"
    assert read(f"{sections}command: {{cmd: x, finished_by: [watcher]}}").warnings == []


def test_budgets_of_a_looping_job_are_a_warning(read: Load) -> None:
    text = "job:\n  {loop}\n  max_restarts: {{program: 3}}\ncommand: {{cmd: x}}"
    (warning,) = read(text.format(loop="loop: true")).warnings
    assert warning.where == "c.yaml:3:17"
    why = "once its program has run, a job with job.loop is resumed after every failure"
    assert warning.message == f"job.max_restarts has no effect: {why}"
    assert read(text.format(loop="loop: false")).warnings == []
    assert read("job: {loop: true, max_restarts: {}}\ncommand: {cmd: x}").warnings == []


def test_what_no_detector_can_say_cannot_be_required(
    read: Load, plugins: Plugins, problems: Callable[..., list[str]]
) -> None:
    plugins.add("watcher", Watcher())
    plugins.add("other", type("Other", (), {"classify_failure": hookimpl(lambda self: None)})())
    for section in ("", "watcher: {failed: x}\n"):
        [error] = problems(f"{section}command: {{cmd: x, finished_by: [watcher], require_finished: true}}")
        assert error.startswith(f"c.yaml:{2 if section else 1}:")
        assert "no attempt could succeed with require_finished: watcher.finished is not set | add a detec" in error
    for more in ("[watcher, other], require_finished: true", "[watcher]"):
        read(f"command: {{cmd: x, finished_by: {more}}}")
    read("watcher: {finished: x}\ncommand: {cmd: x, finished_by: [watcher], require_finished: true}")


def test_a_selected_environment_needs_no_section(read: Load) -> None:
    loaded = read("job: {env_type: conda}\ncommand: {cmd: x}")
    assert loaded.sections["conda"].name == "base"  # type: ignore[attr-defined]


def test_an_environment_missing_from_the_list_is_a_warning(read: Load) -> None:
    loaded = read(MODULES + "job: {env_type: docker}\nsetup: {modules: [ssh]}")
    assert loaded.modules == ("ssh",)
    _, warning = loaded.warnings  # the first is about the section gcsfuse
    assert (warning.where, "'docker' is not used" in warning.message) == ("c.yaml:6:17", True)


def test_sections_of_plugins_that_are_not_installed_are_ignored(read: Load) -> None:
    loaded = read("venv: {anything: 1}\nhosts: [1]\nwandb: {}\ncommand: {cmd: x}")
    assert set(loaded.sections) == {"job", "tpu", "setup", "command", "watch", "solve", "plugins", "ssh"}
    assert [warning.hint for warning in loaded.warnings] == ["pip install tpux-plugin-wandb"]


def test_names_in_plugins_disabled_that_have_no_effect_are_warnings(read: Load) -> None:
    loaded = read("ssh: {}\nplugins: {disabled: [ssh, dockr, conda]}\ncommand: {cmd: x}")
    chosen, unknown = loaded.warnings
    assert (chosen.where, "the config selects it" in chosen.message) == ("c.yaml:2:22", True)
    assert (unknown.where, unknown.hint) == ("c.yaml:2:27", "did you mean 'docker'?")


def test_a_plugin_may_be_the_rule(read: Load) -> None:
    assert read("job: {rule: keep-going}\ncommand: {cmd: x}").sections["job"].rule == "keep-going"  # type: ignore[attr-defined]


def test_workers_of_several_slices(read: Load) -> None:
    loaded = read("tpu: {accelerator: v4-32, node_count: 3}\ncommand: {cmd: x, workers: 11}")
    assert loaded.workers == 12
    assert read("tpu: {allocation_mode: bare}\ncommand: {cmd: x, workers: 11}").workers is None


@pytest.mark.parametrize("name", ["jobman-guide", "jobman-v2"])
def test_jobmans_configs(read: Load, plugins: Plugins, name: str) -> None:
    loaded = read((CONFIGS / f"{name}.yaml").read_bytes())
    assert loaded.allocator == "queued-resources"
    assert set(loaded.modules) == {"ssh", "gcsfuse", "docker"}
    assert loaded.environment == "docker"
    assert loaded.warnings == []
    assert loaded.files == {}
    tpu = loaded.sections["tpu"]
    assert tpu.name == f"yufeng-{tpu.accelerator}"  # type: ignore[attr-defined]
    assert loaded.sections["command"].cmd.startswith("pip show")  # type: ignore[attr-defined]
    stored = json.loads(json.dumps(loaded.resolved(id="000001", user="u")))
    again = config.from_resolved(stored, plugins=plugins, secrets={})
    assert (again.modules, again.environment, again.allocator) == (loaded.modules, "docker", "queued-resources")
    assert again.sections == loaded.sections


@pytest.mark.parametrize("key", ["modules", "command", "tpu", "ssh"])
def test_excerpts_of_jobmans_configs(read: Load, key: str) -> None:
    parts = {
        "modules": "setup: {modules: [ssh, gcsfuse, command]}\nssh:\ngcsfuse: {bucket_name: b, mount_path: p}",
        "command": "command: {run: 'echo ${HOME} ${V:-d} ${a[0]}', workers: all}",
        "tpu": "tpu: {flags: ['--internal-ips'], tags: [], metadata: {a: 1, b: true, c: x}, startup_script: null}",
        "ssh": "ssh: {private_key: ~/.ssh/id_rsa}\njob: {env_type: null, loop: no, remote_user: me, worker_num: 1}",
    }
    loaded = read(parts[key] + ("" if "command: {" in parts[key] else "\ncommand: {cmd: x}"))
    assert loaded.sections["command"].workers == "all"  # type: ignore[attr-defined]


def test_files_are_copied_and_read_from_their_copies(read: Load, plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/boot.sh").write_text("true")
    loaded = read("tpu: {startup_script: sub/boot.sh}\nconda: {config_file: not-there.yaml}\ncommand: {cmd: x}")
    given = tmp_path / "sub/boot.sh"
    assert loaded.files == {given: given}
    copy = tmp_path / "jobs/boot.sh"
    resolved = loaded.resolved(id="000001", user="u", files={given: copy})
    (tmp_path / "sub/boot.sh").unlink()
    again = config.from_resolved(resolved, plugins=plugins, secrets={})
    assert again.sections["tpu"].startup_script == copy  # type: ignore[attr-defined]


def test_an_uninstalled_plugin_of_a_stored_job(read: Load, plugins: Plugins) -> None:
    loaded = read("job: {env_type: docker}\ndocker: {image: i}\nmail: {api_key: k}\ncommand: {cmd: x}")
    resolved = loaded.resolved(id="000001", user="u")
    fewer = Plugins({})
    for name in ("local", "docker"):
        fewer.add(name, plugins.load(name))
    assert "mail" not in config.from_resolved(resolved, plugins=fewer, secrets={}).sections
    only_local = Plugins({})
    only_local.add("local", plugins.load("local"))
    with pytest.raises(TpuxError, match="no plugin 'docker' is installed"):
        config.from_resolved(resolved, plugins=only_local, secrets={})


def test_a_stored_section_that_is_no_longer_valid(read: Load, plugins: Plugins) -> None:
    resolved = read("docker: {image: i}\njob: {env_type: docker}\ncommand: {cmd: x}").resolved(id="000001", user="u")
    resolved["config"]["docker"] = {"picture": "i"}  # type: ignore[index,call-overload]
    with pytest.raises(TpuxError, match="section 'docker' of this job is not valid"):
        config.from_resolved(resolved, plugins=plugins, secrets={})


def test_a_broken_plugin_is_an_error_where_it_is_selected(
    read: Load, plugins: Plugins, install: Callable[..., Path]
) -> None:
    install("tpux-bad", "1 / 0", entries="bad = tpux_bad")
    with_bad = Plugins({"bad": Plugins()._found["bad"]})
    for name in plugins.names():
        with_bad.add(name, plugins.load(name))
    Path("c.yaml").write_text("bad: {a: 1}\ncommand: {cmd: x}\n")
    (warning,) = config.load(Path("c.yaml"), plugins=with_bad).warnings
    assert "the plugin bad is broken: ZeroDivisionError" in warning.message
    with pytest.raises(TpuxError, match=r"argument .*environment 'bad': the plugin bad is broken"):
        config.load(Path("c.yaml"), ["job.env_type=bad"], plugins=with_bad)


def test_an_exception_in_a_model_is_reported(read: Load, plugins: Plugins) -> None:
    from pydantic import field_validator

    class Model(Section):
        a: int

        @field_validator("a")
        @classmethod
        def _fails(cls, value: int) -> int:
            raise KeyError(value)

    class Odd:
        model: object = Model

        @hookimpl
        def config_section(self) -> object:
            return self.model

    plugins.add("odd", Odd())
    with pytest.raises(TpuxError, match="plugin 'odd' failed to validate its section: KeyError: 1"):
        read("odd: {a: 1}\ncommand: {cmd: x}")
    Odd.model = dict
    assert "expected a subclass of Section" in read("odd: {a: 1}\ncommand: {cmd: x}").warnings[0].message


def test_a_section_that_nothing_selects_needs_no_secret_and_is_not_stored(read: Load, plugins: Plugins) -> None:
    loaded = read(
        "command: {cmd: x}\ndocker: {image: '${env:IMAGE}'}\nmail: {api_key: '${env:KEY}'}", environ={"KEY": "k"}
    )
    assert (loaded.secrets, "docker" in loaded.sections) == ({"KEY": "k"}, False)
    stored = loaded.resolved(id="000001", user="u")
    assert (stored["secrets"], "docker" in cast("dict[str, object]", stored["config"])) == (["KEY"], False)
    assert "docker" not in config.from_resolved(stored, plugins=plugins, secrets={"KEY": "k"}).sections


def test_what_nothing_selects_is_validated_all_the_same(problems: Problems) -> None:
    assert problems("command: {cmd: x}\ndocker: {imag: '${env:IMAGE}', image: a, workdir: [1]}") == [
        "c.yaml:2:10: unknown key 'docker.imag' | did you mean 'image'?",
        "c.yaml:2:51: docker.workdir must be a string | ",
    ]


@pytest.mark.parametrize("text", ["conda: {config_file: '${env:SET}'}", "tpu: {accelerator: 'v4-${env:SET}'}"])
def test_an_unset_secret_is_the_only_error_of_its_value(problems: Problems, text: str) -> None:
    text += "\njob: {env_type: conda}\ncommand: {cmd: x}"
    (problem,) = problems(text)
    assert "environment variable SET is not set" in problem


@pytest.mark.parametrize(("hook", "config"), [("on_event", ""), ("on_preempt", "job: {rule: notify}")])
def test_the_section_of_a_listener_or_rule_that_is_a_module_too(
    read: Load, plugins: Plugins, hook: str, config: str
) -> None:
    """No key selects a listener, and `job.rule` selects a rule."""

    class NotifySection(Section):
        url: str

    def called() -> None: ...

    called.__name__ = hook
    model = hookimpl(lambda: NotifySection)
    notify = SimpleNamespace(config_section=model, setup=hookimpl(lambda: None), **{hook: hookimpl(called)})
    plugins.add("notify", notify)
    loaded = read(f"command: {{cmd: x}}\nnotify: {{url: 'https://x'}}\n{config}")
    assert loaded.sections["notify"] == NotifySection(url="https://x")
    assert "notify" not in loaded.modules
