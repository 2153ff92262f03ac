"""What a job takes from the environment: read by the hook `resolve` when it is created, and by nothing afterwards."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WEATHER = """
    import os
    from tpux import Finding, UsageError, hookimpl, sh

    @hookimpl
    def resolve(job):
        if "SKY" not in os.environ:
            raise UsageError("no sky", hint="set SKY")
        return {"sky": os.environ["SKY"], "of": (job.name,)}

    @hookimpl
    def preflight(job):
        return [Finding("warning", f"preflight sees {job.resolved['weather']}")]

    @hookimpl
    def check(job):
        yield sh("test -e sky")

    @hookimpl
    def setup(job):
        yield sh("echo {sky} >sky", sky=job.resolved["weather"]["sky"])
"""
CONFIG = "job: {name: train}\nsetup: {modules: [weather]}\ncommand: {cmd: cat sky}\n"


def test_what_resolve_returns_is_stored_with_the_job(tpux):
    tpux.plugin("tpux-weather", WEATHER, entries="weather = tpux_weather")
    path = tpux.config(CONFIG)
    assert "no sky" in tpux("create", path, code=None).stderr
    assert tpux("list", "--json").stdout.strip() == "[]"
    tpux.env["SKY"] = "blue"
    tpux("supervisor", "start")
    warned = tpux("create", path).stderr
    assert "preflight sees {'sky': 'blue', 'of': ['train']}" in warned, "the same as after it is stored"
    del tpux.env["SKY"]
    tpux("wait", "1")
    assert tpux.output("000001") == b"blue\n"


def test_an_answer_that_cannot_be_stored_names_the_plugin(tpux):
    code = (
        "from tpux import hookimpl\n@hookimpl\ndef resolve(): return {'a': object()}\n@hookimpl\ndef check(): yield\n"
    )
    tpux.plugin("tpux-weather", code, entries="weather = tpux_weather")
    done = tpux("create", tpux.config(CONFIG), code=None)
    assert done.returncode != 0
    assert (
        "plugin weather (tpux-weather 1.0) gave a wrong answer from resolve: ['a']: expected JSON data" in done.stderr
    )


def test_a_local_program_gets_the_path_of_the_shell_that_created_its_job(tpux):
    tool = tpux.work / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    path = tpux.env["PATH"]
    tpux("create", tpux.config("command: {cmd: sleep 1000}\n", "other.yaml"))  # starts a supervisor
    tpux.env["PATH"] = f"{tool.parent}{os.pathsep}{path}"
    job = tpux.create("command: {cmd: my-tool}\n")
    tpux.env["PATH"] = path
    tpux("wait", job)
    assert tpux.output(job) == b"found\n"


def test_a_home_directory_is_that_of_the_shell_that_created_the_job(tpux):
    code = """
        from tpux import Section, hookimpl, put, sh
        from tpux.fields import LocalFile

        class NoteSection(Section):
            file: LocalFile
            '''The note.'''

        @hookimpl
        def config_section(): return NoteSection
        @hookimpl
        def check(): yield sh("test -e note")
        @hookimpl
        def setup(config): yield put(config.file, "~/note")
    """
    tpux.plugin("tpux-note", code, entries="note = tpux_note")
    home = tpux.work.parent / "ann"
    home.mkdir()
    (home / "note.txt").write_text("of ann")
    other = {**tpux.env, "HOME": str(tpux.work)}
    tpux.env["HOME"] = str(home)
    config = "setup: {modules: [note]}\nnote: {file: ~/note.txt}\ncommand: {cmd: cat note; exit 3}\n"
    job = tpux.create(config)
    tpux("wait", job, code=100)
    assert tpux.output(job) == b"of ann"
    tpux("supervisor", "stop")
    tpux.env.update(other)
    tpux("resume", job)
    tpux("wait", job, code=100)
    tpux("resume", job, "command.cmd=cat note")
    tpux("wait", job)
    assert tpux.output(job, attempt=3) == b"of ann"


# --- the source ---------------------------------------------------------------------------------------

READERS = {"environ", "environb", "getenv", "getenvb", "getlogin", "getuser", "expanduser", "which"}
"""Names that read the environment, whatever they are attributes of; `_reads` has those that depend on it."""
ALLOWED = {
    # Run in the shell of a command: `connect_job`, what creates a job or changes its config, and the screen.
    "core/src/tpux/lifecycle/connection.py": {"connect_job"},
    "core/src/tpux/config/loader.py": {"load"},
    "core/src/tpux/console.py": {"has_colours", "has_live_line"},
    "core/src/tpux/store/secrets.py": {"restore_secrets"},
    "core/src/tpux/lifecycle/change_config.py": {"change_config"},
    "core/src/tpux/lifecycle/transfer.py": {"open_giver"},
    # Core's own variables; all but those that commands read only are in the list of a supervisor.
    "core/src/tpux/env.py": {
        "given_home",
        "user_home",
        "user",
        "disabled_plugins",
        "clock_rate",
        # Called by commands only.
        "trace_hooks",
        "trace",
        "settings_files",
        "_config_directory",
    },
    # What a child of the supervisor gets, so that it finds the shell that sets its limit.
    "core/src/tpux/descriptors.py": {"_with_limit"},
    # `tpux supervisor install`.
    "plugins/autostart/src/tpux_autostart/units.py": {"install", "_unit_path"},
    # What `tpux supervisor status` shows of the supervisor's own environment.
    "core/src/tpux/supervisor/lockfile.py": {"describe", "differences"},
    "core/src/tpux/supervisor/client.py": {
        "start_process",
        "clean_environment",
        "_warn_of_differences",
        "plugins_of_supervisor",
    },
    # What commands compare with its source.
    "core/src/tpux/lifecycle/sources.py": {"find_changed"},
    # Whose job it is: commands, and the supervisor, which keeps the variable.
    "plugins/history/src/tpux_history/ledger.py": {"own_user"},
    # `tpux reapply`, `tpux tasks`, `tpux monitor` and `tpux web`, which are commands.
    "plugins/tasks/src/tpux_tasks/task_file.py": {"_make"},
    "plugins/monitor/src/tpux_monitor/actions.py": {"_tpux"},
    "plugins/web/src/tpux_web/jobs.py": {"__init__"},
    "plugins/web/src/tpux_web/server.py": {"_directory"},
    # What a child of the supervisor gets beside the variables that `resolve` has stored.
    "plugins/gke/src/tpux_gke/login.py": {"_of_plugin"},
    "plugins/sheets/src/tpux_sheets/mirror.py": {"write"},
    "plugins/slurm/src/tpux_slurm/commands.py": {"run"},
    "plugins/slurm/src/tpux_slurm/host.py": {"__init__"},
    # `tpux rehearse`, a command, whose store is not the user's.
    "plugins/rehearse/src/tpux_rehearse/sandbox.py": {"_environment"},
    # The hooks `resolve` and `preflight`.
    "plugins/gke/src/tpux_gke/cluster.py": {"find", "_of_kubeconfig"},
    "plugins/slurm/src/tpux_slurm/__init__.py": {"resolve"},
    "plugins/gcp/src/tpux_gcp/project.py": {
        "find_place",
        "_find_endpoint",
        "_find_project",
        "_default_zone",
        "_with_login",
        "find_login",
        "_gcloud_directory",
        "_gcloud_property",
        # Called by the commands `tpux tpu`, and by `resolve` for a TPU without a job.
        "find_place_for_command",
        "_running_emulator",
    },
    # Runs on the workers, whose metadata server may have another address.
    "plugins/gcp/src/tpux_gcp/watchdog.py": {""},
    "plugins/code/src/tpux_code/git.py": {"_run"},
    "plugins/code/src/tpux_code/section.py": {"expand_user"},
    "plugins/local/src/tpux_local/__init__.py": {"preflight", "resolve"},
    "plugins/ssh/src/tpux_ssh/__init__.py": {"resolve"},
}


def _sources() -> Iterator[Path]:
    """Yield the sources of all that a supervisor may run; commands run in the shell of a user."""
    for path in (ROOT / "core/src/tpux").rglob("*.py"):
        if path.relative_to(ROOT / "core/src/tpux").parts[0] not in {"cli", "testing", "api"}:
            yield path
    for path in ROOT.glob("plugins/*/src/**/*.py"):
        for_shells = {"cli", "testing", "contract_fixture", "emulator"} & {path.stem, *path.relative_to(ROOT).parts}
        if not for_shells:
            yield path


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not READERS.isdisjoint(name.name for name in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    base = ast.unparse(node.value)
    if node.attr == "home":
        return base.split(".")[-1] == "Path"
    return node.attr in READERS or (node.attr == "default" and base.split(".")[-1] == "auth")


def _readers(path: Path) -> Iterator[str]:
    """Yield the name of each function that reads the environment, "" for a module or a class."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if _reads(child):
                yield function
            yield from visit(child, child.name if isinstance(child, ast.FunctionDef) else function)

    return visit(ast.parse(path.read_text()), "")


def test_nothing_in_a_jobs_life_reads_the_environment_but_resolve():
    found = {str(path.relative_to(ROOT)): set(_readers(path)) for path in _sources()}
    assert {name: readers for name, readers in found.items() if readers} == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "import os\ndef f(): return os.environ['A']",
        "def f():\n    from os import environ\n    return environ.get('A')",
        "import os\ndef f(): return os.getenv('A')",
        "import getpass\ndef f(): return getpass.getuser()",
        "from pathlib import Path\ndef f(): return Path.home()",
        "import pathlib\ndef f(): return pathlib.Path.home()",
        "import os as o\ndef f(): return o.environ",
        "def f(path): return path.expanduser()",
        "import shutil\ndef f(): return shutil.which('ssh')",
        "import google.auth\ndef f(): return google.auth.default()",
    ],
)
def test_the_check_of_the_source_finds_each_way_to_read(tmp_path, code):
    (tmp_path / "x.py").write_text(code)
    assert list(_readers(tmp_path / "x.py")) == ["f"]
