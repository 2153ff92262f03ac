"""`tpux init`: the config that it writes is valid as it is, and describes what is installed."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal
from tpux.config.models import model_of
from tpux.model.sections import CORE_SECTIONS
from tpux.plugin.manager import Plugins

ALLOCATORS = {"gke", "hosts", "pool", "queued-resources", "slurm", "tpu-vm"}
SECTIONS = {name for name in Plugins().names() if name not in ALLOCATORS and model_of(name, Plugins())} - {"code"}


def test_what_is_written_is_valid_and_asks_nothing_in_a_pipe(runner):
    done = runner("init", stdin="")
    assert done.stderr == "tpux: train.yaml is written; check it with: tpux preflight train.yaml\n"
    assert done.stdout == ""
    text = (runner.work / "train.yaml").read_text()
    # Core has 12 lines, and each plugin with a section, among them code, two.
    assert len(text.splitlines()) == 12 + 2 * len((SECTIONS | {"code"}) - CORE_SECTIONS.keys())
    assert [line.partition("  #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")] == [
        "job:",
        "  name: train",
        "tpu:",
        "  allocation_mode: local",
        "  accelerator: v4-8",
        "command:",
        "  cmd: python3 train.py",
        "code: .",
    ]
    for section in SECTIONS - CORE_SECTIONS.keys():
        assert re.search(rf"^# [^\n]+\n# {section}: \{{", text, re.MULTILINE), section
    checked = runner("config", "check", "train.yaml")
    assert "1, by local" in checked.stdout
    assert "warning" not in checked.stderr + runner("preflight", "train.yaml").stderr


def test_each_line_can_be_uncommented(runner):
    runner("init")
    text = (runner.work / "train.yaml").read_text()
    lines = [line for line in text.splitlines() if re.match(r" *# [\w-]+: [^<]*$", line)]
    assert len(lines) > 10
    for line in lines:
        runner.config(text.replace(line, line.replace("# ", "", 1)), "other.yaml")
        is_script = line.startswith("# script:")  # which needs one of two keys
        done = runner("config", "check", "other.yaml", code=2 if is_script else 0)
        assert not is_script or "no script is named" in done.stderr
    assert "\n# docker: {image: <image>, env_vars: {}, " in text, "required keys are first"


def test_it_runs(tpux):
    (tpux.work / "train.py").write_text("print('trained')\n")
    tpux("init", "first.yaml")
    assert tpux("run", "first.yaml").stdout == "[0] trained\n"
    assert tpux.show("1")["name"] == "first"


def test_an_existing_file_is_kept_but_for_force(runner):
    path = runner.config("mine\n", "train.yaml")
    refused = runner("init", code=2).stderr
    assert (
        refused == "tpux: error: train.yaml exists\n  hint: name another file: tpux init PATH; --force overwrites it\n"
    )
    assert (runner.work / path).read_text() == "mine\n"
    runner("init", "--force")
    assert "command:" in (runner.work / path).read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--forc"], "no such option '--forc'"),
        (["a.yaml", "b.yaml"], "unexpected extra argument (b.yaml)"),
        (["."], ". is a directory"),
        (["missing/train.yaml"], "missing/train.yaml is not in a directory"),
    ],
)
def test_what_is_typed_wrong_writes_nothing(runner, words, said):
    assert said in runner("init", *words, code=2).stderr
    assert not [*runner.work.iterdir()]


def test_names_that_yaml_reads_otherwise_are_quoted(runner):
    runner("init", "true.yaml")
    assert "name: 'true'" in runner("config", "show", "true.yaml").stdout
    runner("init", "1e3 #a: b.yaml")
    assert "name: '1e3 #a: b'" in runner("config", "show", "1e3 #a: b.yaml").stdout


def test_the_settings_and_a_schema_beside_it_are_used(runner):
    runner.env["TPUX_CONFIG"] = str(runner.work / "settings.yaml")
    runner.config("defaults: {tpu: {allocation_mode: tpu-vm, accelerator: v5e-8}}\n", "settings.yaml")
    runner.config("{}", "tpux.schema.json")
    runner("init")
    text = (runner.work / "train.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=tpux.schema.json\n")
    assert "\n  allocation_mode: tpu-vm  #" in text
    assert "\n  accelerator: v5e-8  #" in text
    assert "\n  # zone: null  # The zone, such as us-central2-b or usc2b;" in text


def test_a_broken_plugin_is_left_out(runner):
    runner.plugin("tpux-broken", "raise RuntimeError\n", entries="broken = tpux_broken")
    runner("init")
    assert "broken" not in (runner.work / "train.yaml").read_text()


def test_a_terminal_is_asked_three_questions(tpux):
    terminal = Terminal(tpux, "init", size=(100, 50))  # in which the names of all allocators fit a line
    terminal.until(r"The command \[python3 train.py\]:")
    terminal.type(b'python3 -c "print(1)"  # one\n')
    terminal.until(r"The accelerator \[v4-8\]:")
    terminal.type(b"v4-7\n")
    terminal.until(r"v4-7[^\n]*\n(?:.*\n)*The accelerator \[v4-8\]:")
    terminal.type(b"v4-16\n")
    terminal.until(r"The allocator .*\[local\]:")
    terminal.type(b"\n")
    assert terminal.end() == 0
    shown = tpux("config", "show", "train.yaml").stdout
    assert """  cmd: 'python3 -c "print(1)"  # one'\n""" in shown
    assert "  accelerator: v4-16\n" in shown
    assert "  allocation_mode: local\n" in shown
