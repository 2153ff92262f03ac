"""Plugins without a package: files that a config names, and those of the user's own directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from tpux.clock import SystemClock
from tpux.plugin import limited, local_files, manager, spec
from tpux.plugin.guard import UnusablePluginError
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import HookFailure
from tpux.store import Store
from tpux.store.hooks import HookObserver, failures_dir

RULE = """
from tpux import Action, Failure, Section, hookimpl

class MySection(Section):
    \"\"\"How often.\"\"\"
    times: int = 3
    \"\"\"Restarts.\"\"\"

@hookimpl
def config_section(): return MySection

@hookimpl
def on_preempt(config: MySection, failure: Failure) -> Action:
    return Action("resume") if failure.kind == "program" else Action()
"""
LISTENER = """
from pathlib import Path
from tpux import hookimpl

@hookimpl
def on_event(job, event):
    with Path({path!r}).open("a") as file:
        file.write(f"{text} {{job.id}} {{event.type}}\\n")
"""
CONFIG = """
plugins: {files: [./my_rule.py]}
my_rule: {times: 1}
job: {rule: my_rule}
tpu: {accelerator: v4-8}
command: {cmd: 'test "$TPUX_ATTEMPT" = 2'}
"""


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def own(tpux) -> Path:
    """The user's own directory of plugins."""
    tpux.env["XDG_CONFIG_HOME"] = str(tpux.work / "xdg")
    return tpux.work / "xdg/tpux/plugins"


def test_a_file_is_a_rule_of_the_job_that_names_it_and_of_no_other(tpux):
    write(tpux.work / "my_rule.py", RULE)
    tpux("run", tpux.config(CONFIG))
    shown = tpux.json("list")[0]
    assert shown["state"] == "succeeded"
    other = tpux.config("job: {rule: my_rule}\ntpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}\n", "other.yaml")
    assert "no plugin 'my_rule' is installed" in tpux("create", other, code=2).stderr


def test_an_edit_changes_no_job_and_jobs_of_one_supervisor_have_each_their_own(tpux, own):
    """The copies are those of the time of `create`, also for a supervisor that imports them only after the edit."""
    log, gate = tpux.work / "log", tpux.work / "gate"
    file = write(own / "my-ear.py", LISTENER.format(path=str(log), text="one"))
    wait = f"tpu: {{accelerator: v4-8}}\ncommand: {{cmd: 'until [ -e {gate} ]; do sleep 0.1; done'}}\n"
    first = tpux.create(wait)
    write(file, LISTENER.format(path=str(log), text="two"))
    second = tpux.create(wait)
    write(file, "raise RuntimeError('edited')\n")
    tpux.until_state(first, "running")
    tpux.until_state(second, "running")
    tpux.kill_supervisor()
    gate.touch()
    tpux("wait", first, second)
    tpux.until_done()
    lines = {tuple(line.split()) for line in log.read_text().splitlines()}
    assert {(text, job) for text, job, _ in lines} == {("one", first), ("two", second)}
    assert ("one", first, "created") in lines
    assert ("two", second, "attempt-ended") in lines


@pytest.mark.system
def test_a_resumed_job_keeps_its_copy_until_it_is_told_to_read_the_file_again(tpux):
    file = write(tpux.work / "my_rule.py", RULE.replace('"resume"', '"none"').replace('Action("none")', "Action()"))
    tpux("run", tpux.config(CONFIG.replace("= 2", "= 4")), code=100)
    job = tpux.json("list")[0]["id"]
    write(file, RULE)
    tpux("rerun", job)
    tpux("wait", job, code=None)
    assert tpux.show(job)["state"] == "failed"
    tpux("rerun", job, "--sync")
    tpux("wait", job, code=None)
    assert tpux.show(job)["state"] == "succeeded"


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(runner, mode):
    write(runner.work / "my_rule.py", RULE, mode)
    done = runner("create", runner.config(CONFIG), code=2)
    assert f"my_rule.py can be written by others (mode {mode:04o})" in done.stderr
    assert "hint: chmod go-w " in done.stderr
    assert "job.yaml:2:19" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(runner):
    os.chown(write(runner.work / "my_rule.py", RULE), 65534, 65534)
    assert "my_rule.py belongs to another user" in runner("create", runner.config(CONFIG), code=2).stderr


def test_a_file_of_the_user_that_others_may_write_is_not_copied(tpux, own):
    write(own / "my_ear.py", LISTENER.format(path=str(tpux.work / "log"), text="one"), 0o666)
    done = tpux("run", tpux.config("tpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}\n"))
    assert "my_ear.py can be written by others" in done.stderr
    tpux.until_done()
    assert not (tpux.work / "log").exists()
    assert not [*tpux.home.rglob("my_ear.py")]


def test_a_sync_refuses_what_a_new_job_would_not_copy(tpux, own):
    file = write(own / "my_ear.py", LISTENER.format(path=str(tpux.work / "log"), text="one"))
    job = tpux.create("tpu: {accelerator: v4-8}\ncommand: {cmd: exit 3}\n")
    tpux("wait", job, code=100)
    file.chmod(0o664)
    refused = tpux("resume", job, "--sync", code=2).stderr
    assert "my_ear.py can be written by others (mode 0664)" in refused
    assert "hint: chmod go-w " in refused
    assert not [*tpux.directory(job).glob("configs/*")]
    file.chmod(0o644)
    tpux("resume", job, "--sync")


def test_a_sync_keeps_the_copy_of_a_file_that_has_become_a_package(tpux, own):
    file = write(own / "my_ear.py", LISTENER.format(path=str(tpux.work / "log"), text="one"))
    job = tpux.create("tpu: {accelerator: v4-8}\ncommand: {cmd: exit 3}\n")
    tpux("wait", job, code=100)
    file.unlink()
    tpux("resume", job, "--sync")
    tpux("wait", job, code=100)
    assert [*tpux.directory(job).glob("configs/*/plugins/my_ear.py")]


def test_what_a_job_gets_of_a_file_is_what_was_checked(tpux):
    text = RULE + "from pathlib import Path\nPath({!r}).write_text('raise RuntimeError')\n"
    file = tpux.work / "my_rule.py"
    write(file, text.format(str(file)))
    job = tpux.create(CONFIG)
    assert file.read_text() == "raise RuntimeError"
    assert (tpux.directory(job) / "plugins/my_rule.py").read_text() == text.format(str(file))


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("docker", "", "tpux-plugin-docker 0.1.0 and local file "),
        ("command", "", "the name 'command' is reserved for tpux"),
        ("My", "", "'My' is not a valid name"),
        ("broken", "import tpux\n\nnone.such\n", "broken.py:3: NameError: name 'none' is not defined"),
        ("broken", "x = 1\ndef f(:\n", "broken.py:2: SyntaxError: "),
        ("broken", "import sys\nsys.exit(3)\n", "broken.py:2: it called sys.exit(3)"),
        ("empty", "", "it implements no hook"),
        ("wrong", "import tpux\n@tpux.hookimpl\ndef setpu(): ...\n", "there is no hook 'setpu': did you mean 'setup'?"),
        ("cloud", "import tpux\n@tpux.hookimpl\ndef release(): ...\n", "it implements release, which a file may not"),
        ("wire", "import tpux\n@tpux.hookimpl\ndef connect(): ...\n", "it implements connect, which a file may not"),
    ],
)
def test_what_is_wrong_with_a_file_is_an_error_of_the_config(runner, name, code, message):
    write(runner.work / f"{name}.py", code)
    config = f"plugins: {{files: [{name}.py]}}\ntpu: {{accelerator: v4-8}}\ncommand: {{cmd: 'true'}}\n"
    done = runner("create", runner.config(config), code=2)
    assert "job.yaml:1:19" in done.stderr
    assert message in done.stderr


def test_the_file_that_is_named_exists_and_is_named_in_the_config_itself(runner):
    write(runner.work / "my_rule.py", RULE)
    config = runner.config("tpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}\n")
    assert (
        "my_rule.py is not in the config itself"
        in runner("create", config, "plugins.files=[my_rule.py]", code=2).stderr
    )
    config = runner.config("plugins: {files: [no.py]}\ntpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}\n")
    assert "file not found" in runner("create", config, code=2).stderr


def test_an_import_that_blocks_ends_at_the_limit_and_is_named_with_its_line(runner):
    runner.env["TPUX_CLOCK_RATE"] = "20"
    write(runner.work / "slow.py", "import time\n\ntime.sleep(3600)\n")
    config = "plugins: {files: [slow.py]}\ntpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}\n"
    done = runner("create", runner.config(config), code=2)
    assert "slow.py:3: its import has not ended within 10 s" in done.stderr


@pytest.mark.parametrize(
    "fails", ["raise MemoryError", "raise OSError(5, 'Input/output error')", "import threading; gate.wait()"]
)
def test_a_job_can_use_its_file_once_what_was_scarce_has_returned(tmp_path, monkeypatch, fails):
    """Only what is written in a file makes it broken for ever."""
    monkeypatch.setattr(limited, "LEAST", 0.01)
    monkeypatch.setattr(local_files, "STORED_LIMIT", 0.01, raising=False)
    monkeypatch.setattr(local_files, "IMPORT_LIMIT", 0.01)
    gate, scarce = threading.Event(), tmp_path / "scarce"
    monkeypatch.setattr(threading, "gate", gate, raising=False)
    start = f"from pathlib import Path\nfrom threading import gate\nif Path({str(scarce)!r}).exists():\n    {fails}\n"
    write(tmp_path / "my_rule.py", start + RULE)
    scarce.touch()
    plugins = Plugins().with_files(local_files.stored(tmp_path, "1"))
    with pytest.raises(UnusablePluginError):
        plugins.load("my_rule")
    scarce.unlink()
    monkeypatch.setattr(limited, "LEAST", 60.0)
    assert plugins.load("my_rule")
    gate.set()


def test_a_file_that_blocks_is_not_imported_without_end_for_a_job_that_has_not_selected_it(tmp_path, monkeypatch):
    monkeypatch.setattr(limited, "LEAST", 0.01)
    monkeypatch.setattr(local_files, "STORED_LIMIT", 0.01)
    gate, tried = threading.Event(), list[int]()
    monkeypatch.setattr(threading, "gate", gate, raising=False)
    monkeypatch.setattr(threading, "tried", tried, raising=False)
    start = "from threading import gate, tried\ntried.append(1)\ngate.wait()\n"
    write(tmp_path / "my_rule.py", start + RULE)
    plugins = Plugins().with_files(local_files.stored(tmp_path, "1"))
    for _ in range(6):
        assert not plugins.can_load("my_rule", in_time=True)
    gate.set()
    assert len(tried) <= limited.MAX_LATE


def test_a_file_whose_error_never_passes_is_imported_three_times_and_named_with_its_line(tmp_path, monkeypatch):
    tried = list[int]()
    monkeypatch.setattr(threading, "tried", tried, raising=False)
    start = "from threading import tried\ntried.append(1)\nraise OSError(5, 'Input/output error')\n"
    write(tmp_path / "my_rule.py", start + RULE)
    plugins = Plugins().with_files(local_files.stored(tmp_path, "1"))
    for _ in range(6):
        [error] = plugins.broken(spec.on_preempt).values()
        assert "my_rule.py:3: " in error.message
        assert "Input/output error" in error.message
    assert len(tried) == limited.MAX_LATE


def test_a_file_that_cannot_be_registered_leaves_no_module(tmp_path):
    write(tmp_path / "empty.py", "")
    plugins = Plugins().with_files(local_files.stored(tmp_path, "1"))
    before = {*sys.modules}
    assert not plugins.can_load("empty")
    assert not [name for name in {*sys.modules} - before if name.startswith("tpux_file_")]


def test_installed_plugins_are_searched_once_for_all_jobs_with_files(tmp_path, monkeypatch):
    write(tmp_path / "my_rule.py", RULE)
    searched = list[str]()

    def search(found, hook):
        searched.append(found.name)
        return False

    monkeypatch.setattr(manager, "may_implement", search)
    plugins = Plugins()
    for job in "12":
        plugins.with_files(local_files.stored(tmp_path, job)).implementing(spec.solve)
    assert searched.count("docker") == 1
    assert searched.count("my_rule") == 2


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "my_rule.py", 0o600)
    assert "is no regular file" in local_files.found([tmp_path / "my_rule.py"], {})["my_rule"].broken


def test_the_stored_failure_of_a_hook_shows_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path))
    store = Store()
    observer = HookObserver(store, SystemClock())
    observer.secrets = {"hunter2hunter2"}
    observer.failed(HookFailure("my_rule", "setup", "no login: hunter2hunter2", "Traceback: hunter2hunter2"))
    stored = (failures_dir(store) / "my_rule.json").read_text()
    assert "no login" in stored
    assert "hunter2hunter2" not in stored


def test_a_failure_of_a_hook_names_the_line_of_the_jobs_copy(tpux):
    write(tpux.work / "my_rule.py", RULE.replace('return Action("resume")', 'return none.such or Action("resume")'))
    done = tpux("run", tpux.config(CONFIG), code=100)
    job = tpux.json("list")[0]["id"]
    copy = tpux.directory(job) / "plugins/my_rule.py"
    assert f"plugin my_rule (local file {copy}:14) failed in on_preempt: NameError" in str(tpux.events(job, "waiting"))
    assert f"{copy}:14" in done.stderr


def test_a_job_that_fails_by_its_file_says_how_to_give_it_another_copy(tpux):
    rule = write(tpux.work / "my_step.py", "from tpux import hookimpl\n@hookimpl\ndef preflight(): ...\n")
    broken = rule.read_text() + "@hookimpl\ndef resolve(): return {}\n@hookimpl\ndef setup(): return none.such\n"
    write(rule, broken)
    config = "plugins: {files: [my_step.py]}\nsetup: {modules: [my_step]}\ncommand: {cmd: 'true'}\n"
    said = tpux("run", tpux.config(config), code=None).stderr
    assert "JOB" not in said
    assert "correct the file that it is a copy of, then: tpux resume 1 --sync" in said
    assert "once the plugin is repaired: tpux resume 1 --sync" in said


def test_the_list_shows_the_files_of_the_user(runner, own_runner):
    write(own_runner / "my_rule.py", '"""Rule `my_rule`: resumes."""\n' + RULE)
    write(own_runner / "bad.py", "x = 1\n1/0\n")
    write(own_runner / "docker.py", RULE)
    rows = {row["name"]: row for row in json.loads(runner("plugins", "list", "--json").stdout)}
    assert (rows["my_rule"]["dist"], rows["my_rule"]["version"]) == ("local file", str(own_runner / "my_rule.py"))
    assert rows["bad"]["status"] == "broken"
    assert f"{own_runner}/bad.py:2: ZeroDivisionError" in rows["bad"]["error"]
    assert "both use the name 'docker'" in rows["docker"]["error"]
    line = next(line for line in runner("plugins", "list").stdout.splitlines() if line.startswith("my_rule "))
    assert line.split()[1:5] == ["rule", "local", "file", "ok"]


@pytest.fixture
def own_runner(runner) -> Path:
    runner.env["XDG_CONFIG_HOME"] = str(runner.work / "xdg")
    return runner.work / "xdg/tpux/plugins"


def test_a_file_becomes_a_package_whose_tests_pass(runner, tmp_path):
    """The tests are those of the new project, which has the file's code."""
    file = write(runner.work / "my_rule.py", RULE)
    typed = runner("plugins", "package", "my_rule.py").stdout.splitlines()
    project = runner.work / "tpux-plugin-my_rule"
    assert typed == [f"cd {project.name} && pip install -e '.[test]'", "python -m pytest", "tpux plugins show my_rule"]
    assert (project / "src/tpux_my_rule/__init__.py").read_text() == file.read_text()
    assert 'my_rule = "tpux_my_rule"' in (project / "pyproject.toml").read_text()
    assert "example.yaml" not in (project / "README.md").read_text()
    site = install_editable(project, tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", project],
        cwd=project,
        env={**runner.env, "PYTHONPATH": f"{site}:{project / 'src'}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "my_rule.py is no file" in runner("plugins", "package", "no/my_rule.py", code=2).stderr
    write(runner.work / "docker.py", RULE)
    assert "the name 'docker' is taken" in runner("plugins", "package", "docker.py", code=2).stderr


def install_editable(project: Path, site: Path) -> Path:
    """Declare a project's entry points in a directory of PYTHONPATH, as an editable installation does."""
    info = site / "tpux_plugin_my_rule-0.1.0.dist-info"
    info.mkdir(parents=True)
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 0.1.0\n")
    entries = "".join(f"{name} = {value}\n" for name, value in declared["entry-points"]["tpux"].items())
    (info / "entry_points.txt").write_text(f"[tpux]\n{entries}")
    return site


def test_a_file_is_checked_and_shown(runner, own_runner):
    write(own_runner / "my_rule.py", RULE)
    shown = runner("plugins", "show", "my_rule").stdout
    assert f"local file {own_runner}/my_rule.py" in shown
    assert "times (integer; default 3)" in shown
    done = runner("plugins", "check", str(own_runner / "my_rule.py"))
    assert done.stdout.splitlines() == ["ok: declaration", "ok: hooks_contract", "ok: section_contract"]
    write(own_runner / "my_rule.py", RULE.replace("failure: Failure)", "failure: Failure, restarts=None)"))
    done = runner("plugins", "check", str(own_runner / "my_rule.py"), code=1)
    assert "the argument restarts has a default" in done.stderr


def test_a_file_passes_the_contract_of_its_kind_or_does_not(runner):
    module = (
        "from tpux import hookimpl, sh\n\n"
        "@hookimpl\ndef check():\n    yield sh('test -e ~/data')\n\n"
        "@hookimpl\ndef setup():\n    yield sh('echo x >~/data')\n"
    )
    path = write(runner.work / "data.py", module)
    config = write(
        runner.work / "job.yaml", "plugins: {files: [./data.py]}\nsetup: {modules: [data]}\ncommand: {cmd: x}\n"
    )
    assert f"hint: tpux plugins check {path} --config FILE" in runner("plugins", "check", str(path)).stdout
    assert "ok: module_contract" in runner("plugins", "check", str(path), "-c", str(config)).stdout
    write(path, module.replace("test -e", "test ! -e"))
    failed = runner("plugins", "check", str(path), "-c", str(config), code=1).stderr
    assert "failed: module_contract: plugin data, hook check: it succeeds on a new worker" in failed
    write(path, "import nothing_of_this_name\n")
    assert "failed: declaration" in runner("plugins", "check", str(path), "-c", str(config), code=1).stderr
