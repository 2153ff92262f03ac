"""Words of other tools: what tpux says to a command, a key, a value or an option that it calls otherwise."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.main

from tpux.cli.main import COMMANDS, app
from tpux.config.models import keys_by_section
from tpux.model.sections import TpuSection
from tpux.plugin import synonyms
from tpux.plugin.catalog import DIST_OF_COMMAND
from tpux.plugin.manager import Plugins

PLUGINS = Path(__file__).parents[1] / "plugins"
ENDING = ("stop", "cancel", "kill", "delete", "clean", "rerun", "restart")


def test_the_table_names_only_what_exists():
    keys = {f"{section}.{key}" for section, names in keys_by_section(Plugins()).items() for key in names}
    for word, meaning in synonyms.words("keys").items():
        named = [meaning.partition(": ")[0]] if " " not in meaning.partition(": ")[0] else []
        assert {*named, *re.findall(r"\b(?:tpu|job|code|command|docker|gcsfuse)\.[a-z_]+", meaning)} <= keys, word
    commands = {*COMMANDS, *DIST_OF_COMMAND}
    prose = {"has", "lists", "updates", "plugins"}
    for word, meaning in {**synonyms.words("commands"), **synonyms.words("aliases")}.items():
        named = re.findall(r"\btpux ([a-z][a-z-]*)", f"tpux {meaning}" if " " not in meaning else meaning)
        unknown = {*named} - commands - prose
        assert not unknown, word
        assert word not in commands, f"{word} is a command"


def test_the_commands_of_all_plugins_of_this_repository_can_be_named_when_they_are_not_installed():
    found = {}
    for file in PLUGINS.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        found |= dict.fromkeys(project.get("entry-points", {}).get("tpux.commands", {}), project["name"])
    assert found == DIST_OF_COMMAND


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("launch train.yaml", "tpux run CONFIG"),
        ("down 3", "tpux delete JOB"),
        ("scp a b", "tpux cp"),
        ("top", "tpux list"),
        ("cost-report", "tpux history"),
        ("COST_REPORT", "tpux history"),
        ("config validate x.yaml", "tpux config check"),
        ("queue tasks.yaml", "tpux tasks run tasks.yaml"),
        ("version", "tpux --version"),
    ],
)
def test_a_command_of_another_tool_is_answered_with_what_to_type(runner, words, said):
    shown = runner(*shlex.split(words), code=2).stderr
    assert said in shown
    assert "did you mean" not in shown


@pytest.mark.parametrize("word", ["sto", "stopp", "delte", "clea", "rerum", "restar", "cancle", "killl", "rebot"])
def test_a_command_that_ends_something_is_never_suggested_by_its_spelling(runner, word):
    shown = runner(word, code=2).stderr
    assert not re.search(rf"'(?:{'|'.join(ENDING)})'", shown)
    assert "tpux --help" in shown
    assert "did you mean 'list'?" in runner("lst", code=2).stderr


def test_help_is_a_command_and_a_short_option(runner):
    assert runner("help").stdout == runner("--help").stdout == runner("-h").stdout
    assert runner("help", "stop").stdout == runner("stop", "-h").stdout == runner("stop", "--help").stdout
    assert runner("config", "help").stdout == runner("config", "-h").stdout
    assert runner("help", "config", "check").stdout == runner("config", "check", "--help").stdout
    assert runner("exec", "-h").stdout == runner("exec", "--help").stdout
    assert "unknown command 'nonsense'" in runner("help", "nonsense", code=2).stderr


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("job.accelerator=v4-8", "'tpu.accelerator'"),
        ("tpu.region=us-central2", "'tpu.zone'"),
        ("tpu.use_spot=true", "tpu.pricing: spot"),
        ("command.environment={A: 1}", "'command.env'"),
        ("command.script=x", "'command.cmd'"),
        ("command.grace-period=3s", "'grace_period'"),
        ("job.grace_period=3s", "'command.grace_period'"),
        ("tpu.release=keep", "'never'"),
        ("job.rule=restart", "'rerun'"),
        ("job.env_type=virtualenv", "'venv'"),
        ("tpu.allocation_mode=gcp", "'tpu-vm'"),
        ("setup.modules=[bucket]", "'gcsfuse'"),
    ],
)
def test_a_key_or_a_value_of_another_tool_is_answered_with_where_it_is_here(runner, override, said):
    config = runner.config("tpu: {allocation_mode: tpu-vm}\ncommand: {cmd: x}\n")
    shown = runner("config", "check", config, override, code=2).stderr
    assert f"did you mean {said}?" in shown or said in shown.partition("hint: ")[2].partition("\n")[0], shown


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("accelerator=v4-8", "'tpu.accelerator'"),
        ("zone=us-central2-b", "'tpu.zone'"),
        ("num_nodes=2", "'tpu.node_count'"),
        ("resources.accelerators=v4-8", "'tpu.accelerator'"),
        ("resources.use_spot=true", "tpu.pricing: spot"),
        ("name=x", "'job.name'"),
        ("image=x", "'docker.image'"),
    ],
)
def test_a_word_of_another_tool_that_the_program_gets_is_answered_with_a_warning(runner, word, said):
    shown = runner("config", "check", runner.config("command: {cmd: x}\n"), word).stderr
    assert f"{word.partition('=')[0]}=... is an argument of the program, and changes nothing of the config" in shown
    assert said in shown.partition("hint: ")[2].partition("\n")[0], shown


def test_a_key_in_the_file_is_looked_up_in_the_same_way(runner):
    config = runner.config("accelerator: v4-8\nresources: {accelerators: v4-8}\ncommand: {cmd: x}\n")
    shown = runner("config", "check", config, code=2).stderr
    assert "job.yaml:1:1: unknown section 'accelerator'\n  hint: did you mean 'tpu.accelerator'?" in shown
    assert "unknown section 'resources'\n  hint: the machines are described in the section tpu" in shown


def test_an_option_that_is_a_key_is_answered_with_the_key(runner):
    config = runner.config("command: {cmd: x}\n")
    assert "tpu.zone" in runner("run", config, "--zone", "us-central2-b", code=2).stderr
    assert "tpu.pricing=spot" in runner("create", config, "--spot", code=2).stderr
    assert "job.name" in runner("run", config, "--name", "x", code=2).stderr


def test_on_demand_may_be_written_in_each_of_its_spellings(runner):
    config = runner.config("tpu: {pricing: on-demand}\ncommand: {cmd: x}\n")
    runner("config", "check", config)
    runner("config", "check", config, "tpu.pricing=On_Demand")
    runner("config", "check", config, "tpu.pricing=demand", code=2)
    assert TpuSection.model_validate({"pricing": "on-demand"}).pricing == "ondemand"


def test_help_is_inherited_by_the_commands_of_plugins():
    assert typer.main.get_command(app).context_settings["help_option_names"] == ["--help", "-h"]
