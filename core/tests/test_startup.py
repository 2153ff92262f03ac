"""Common commands start fast: they import neither a plugin nor a heavy library."""

import json
import os
import subprocess
import sys

import pytest

from tpux.model.events import Created
from tpux.store import Store
from tpux.store.locks import Lock
from tpux.supervisor.files import Files

HEAVY = {"fabric", "google", "invoke", "paramiko", "pluggy", "portalocker", "pydantic", "rich", "ruamel", "yaml"}
HEAVY |= {"email"}  # which importlib.metadata imports
SCRIPT = """
import json, sys
import typer.main
from tpux.cli.main import app, run
code = run(typer.main.get_command(app))
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.fixture
def store(tmp_path):
    """A store with one pending job, and a held lock in the place of a supervisor."""
    store = Store(tmp_path / "home", "me")
    store.create(lambda job: ({}, Created(id=job, user="me", name="train")), at=0.0)
    lock = Lock(Files(store.supervisor).lock)
    assert lock.acquire()
    yield store
    lock.release()


@pytest.mark.parametrize(
    "words", [["--help"], ["list"], ["list", "--json"], ["list", "--name", "t*"], ["stop", "--help"]]
)
def test_no_plugin_and_nothing_heavy_is_imported(store, words):
    env = {**os.environ, "TPUX_HOME": str(store.home), "TPUX_USER": "me"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], env=env, capture_output=True, text=True, check=True)
    *output, last = done.stdout.splitlines()
    code, modules = json.loads(last)
    assert code == 0
    assert output
    assert HEAVY.isdisjoint(modules)
    assert not [name for name in modules if name.startswith("tpux_")]


def test_an_unknown_command_imports_no_plugin_either(store):
    env = {**os.environ, "TPUX_HOME": str(store.home)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, "lsit"], env=env, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 2
    assert "did you mean 'list'?" in done.stderr
    assert not [name for name in modules if name.startswith("tpux_")]


def test_ctrl_c_is_handled_before_anything_is_imported():
    script = (
        "import sys, enum; before = {*sys.modules}; import tpux.__main__; import signal;"
        "print(sorted({*sys.modules} - before - {'__future__'}), signal.getsignal(signal.SIGINT) == signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['signal', 'tpux', 'tpux.__main__'] True\n"


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["config", "schema"]])
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(tmp_path, words):
    command, env = [sys.executable, "-m", "tpux", *words], {**os.environ, "TPUX_HOME": str(tmp_path)}
    with open("/dev/full", "wb") as full:  # noqa: PTH123  (a device)
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    if words == ["config", "schema"]:  # more than a buffer: the error is not known to be that of the output
        assert "Exception" not in done.stderr
        assert done.stderr.startswith("tpux: error: the system: No space left on device\n")
    else:
        assert done.stderr == "tpux: error: standard output: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
@pytest.mark.parametrize("words", ["--version", "rules", "list", "plugins list"])
def test_a_closed_standard_output_is_no_error(tmp_path, words, closed):
    env = {**os.environ, "TPUX_HOME": str(tmp_path)}
    command = f"exec '{sys.executable}' -m tpux {words} {closed}"
    done = subprocess.run(["sh", "-c", command], env=env, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "error" not in done.stderr


def test_a_closed_standard_error_is_no_error(tmp_path):
    command = f"exec '{sys.executable}' -m tpux show 1 2>&-"
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "TPUX_HOME": str(tmp_path)}, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, b"")
