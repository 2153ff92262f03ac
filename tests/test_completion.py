"""Shell completion, as the shells ask for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tpux.cli.main import COMMANDS

CONFIG = "job: {name: lr-1}\ncommand: {cmd: 'exit 0'}\n"
LATER = "job: {name: lr-2}\ncommand: {cmd: 'exit 0'}\n"
HEAVY = ("pydantic", "ruamel", "rich", "fabric", "google", "tpux_local", "tpux_broken", "portalocker")

# Runs the command that its arguments are, and adds the modules that this has imported as a last line.
SPY = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
sys.argv[0] = "tpux"
from tpux.cli.main import main
main()
"""


def offers(tpux, *words):
    """What is offered in the place of the last word, in bash's order, and what was imported for it."""
    env = tpux.env | {
        "_TPUX_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["tpux", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-c", SPY], env=env, capture_output=True, text=True, cwd=tpux.work)
    assert done.stderr == ""
    *lines, modules = done.stdout.splitlines()
    return [line for line in lines if line], json.loads(modules)


@pytest.fixture
def jobs(tpux):
    """Three jobs: two called lr-1, one called lr-2."""
    ids = [tpux.create(CONFIG), tpux.create(CONFIG), tpux.create(LATER)]
    tpux("wait", *ids)
    return tpux


def test_commands(tpux):
    found, _ = offers(tpux, "re")
    assert found == ["resume", "reboot", "rerun"]
    found, _ = offers(tpux, "")
    assert set(COMMANDS) <= set(found)


def test_options_and_the_commands_of_a_group(tpux):
    assert set(offers(tpux, "list", "--a")[0]) == {"--all", "--all-users"}
    assert offers(tpux, "config", "s")[0] == ["show", "schema"]


def test_ids_newest_first_then_names_that_are_one_jobs(jobs):
    assert offers(jobs, "show", "")[0] == ["000003", "000002", "000001", "lr-2"]
    assert offers(jobs, "stop", "000001", "lr")[0] == ["lr-2"]
    assert offers(jobs, "logs", "00000")[0] == ["000003", "000002", "000001"]
    assert offers(jobs, "show", "x")[0] == []


def test_states(tpux):
    assert offers(tpux, "list", "--state", "s")[0] == ["setting-up", "stopping", "stopped", "succeeded"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {"plugins", "config", "supervisor"}])
def test_nothing_heavy_is_imported_for_it(tpux, command):
    tpux.plugin("tpux-broken", "raise SystemExit('imported')", entries="broken = tpux_broken")
    for words in ([command, ""], [command, "--"]):
        _, modules = offers(tpux, *words)
        assert [name for name in modules if name.split(".")[0] in HEAVY] == []


def test_a_broken_job_costs_its_own_offer_and_no_store_is_none(jobs):
    for name in ("state.json", "events.jsonl"):
        (jobs.directory("000002") / name).write_text("no\n")
    assert offers(jobs, "show", "")[0] == ["000003", "000001", "lr-2", "lr-1"]
    jobs.env["TPUX_HOME"] = "/proc/nowhere"
    assert offers(jobs, "show", "")[0] == []
    offers(jobs, "no-such-command", "")  # silent


def test_bash_itself_completes(jobs):
    script = jobs("completion", "bash").stdout
    ask = 'COMP_WORDS=(tpux sh); COMP_CWORD=1; _tpux_completion tpux; echo "${COMPREPLY[@]}"'
    bin_ = jobs.work / "bin"
    bin_.mkdir()
    (bin_ / "tpux").write_text(f'#!/bin/sh\nexec {sys.executable} -m tpux.cli.main "$@"\n')
    (bin_ / "tpux").chmod(0o755)
    env = jobs.env | {"PATH": f"{bin_}{os.pathsep}{jobs.env['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("show\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tpux, shell):
    script = tpux("completion", shell).stdout
    assert "_TPUX_COMPLETE=" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


def test_another_shell_is_a_mistake(tpux):
    assert "tcsh" in tpux("completion", "tcsh", code=2).stderr
