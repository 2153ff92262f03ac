"""Shell completion, called as the shells call it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tpux.cli.main import COMMANDS

CONFIG = "job: {name: lr-1}\ncommand: {cmd: 'exit 0'}\n"
SECOND = "job: {name: lr-2}\ncommand: {cmd: 'exit 0'}\n"
HEAVY = ("pydantic", "ruamel", "rich", "fabric", "google", "tpux_local", "tpux_broken", "portalocker")

# Runs tpux, and prints the imported modules as the last line.
PRINT_IMPORTS = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
sys.argv[0] = "tpux"
from tpux.cli.main import main
main()
"""


def completions(tpux, *words):
    """Return the completions of the last word, in bash's order, and the modules that were imported."""
    env = tpux.env | {
        "_TPUX_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["tpux", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-c", PRINT_IMPORTS], env=env, capture_output=True, text=True, cwd=tpux.work)
    assert done.stderr == ""
    *lines, modules = done.stdout.splitlines()
    return [line for line in lines if line], json.loads(modules)


@pytest.fixture
def jobs(tpux):
    """Three jobs: two called lr-1, one called lr-2."""
    ids = [tpux.create(CONFIG), tpux.create(CONFIG), tpux.create(SECOND)]
    tpux("wait", *ids)
    tpux.until_done()
    return tpux


def test_commands(tpux):
    found, _ = completions(tpux, "re")
    assert found == ["resume", "rerun", "restart", "reapply", "rehearse", "release"]
    found, _ = completions(tpux, "")
    assert set(COMMANDS) - {"cancel"} <= set(found), "an alias is listed nowhere"


def test_options_and_the_commands_of_a_group(tpux):
    assert set(completions(tpux, "list", "--a")[0]) == {"--all", "--all-users"}
    assert completions(tpux, "config", "s")[0] == ["show", "set", "schema"]


def test_ids_newest_first_then_unique_names(jobs):
    assert completions(jobs, "show", "")[0] == ["000003", "000002", "000001", "lr-2"]
    assert completions(jobs, "stop", "000001", "lr")[0] == ["lr-2"]
    assert completions(jobs, "logs", "00000")[0] == ["000003", "000002", "000001"]
    assert completions(jobs, "show", "x")[0] == []


def test_states(tpux):
    assert completions(tpux, "list", "--state", "s")[0] == ["setting-up", "stopping", "stopped", "succeeded"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {"plugins", "config", "supervisor"}])
def test_completion_imports_no_heavy_modules(tpux, command):
    tpux.plugin("tpux-broken", "raise SystemExit('imported')", entries="broken = tpux_broken")
    for words in ([command, ""], [command, "--"]):
        _, modules = completions(tpux, *words)
        assert [name for name in modules if name.split(".")[0] in HEAVY] == []


def test_a_corrupt_job_or_an_unreadable_store_is_skipped(jobs):
    for name in ("state.json", "events.jsonl"):
        (jobs.directory("000002") / name).write_text("no\n")
    assert completions(jobs, "show", "")[0] == ["000003", "000001", "lr-2", "lr-1"]
    jobs.env["TPUX_HOME"] = "/proc/nowhere"
    assert completions(jobs, "show", "")[0] == []
    completions(jobs, "no-such-command", "")  # silent


def test_completion_in_bash(jobs):
    script = jobs("completion", "bash").stdout
    request = 'COMP_WORDS=(tpux sh); COMP_CWORD=1; _tpux_completion tpux; echo "${COMPREPLY[@]}"'
    bin_ = jobs.work / "bin"
    bin_.mkdir()
    (bin_ / "tpux").write_text(f'#!/bin/sh\nexec {sys.executable} -m tpux.cli.main "$@"\n')
    (bin_ / "tpux").chmod(0o755)
    env = jobs.env | {"PATH": f"{bin_}{os.pathsep}{jobs.env['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{script}\n{request}"], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("show\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(tpux, shell):
    script = tpux("completion", shell).stdout
    assert "_TPUX_COMPLETE=" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


def test_an_unsupported_shell_is_an_error(runner):
    assert "tcsh" in runner("completion", "tcsh", code=2).stderr
