"""Commands that plugins add to core's groups: entry points `GROUP.NAME` of `tpux.commands`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main
from click.testing import CliRunner, Result

from tpux.cli.main import Commands, app, core_commands
from tpux.errors import TpuxError
from tpux.plugin.status import command_rows

Install = Callable[..., Path]
LINT = '''"""`tpux config lint`: find what is odd in a config."""
import typer
app = typer.Typer()
@app.command()
def lint(file: str): typer.echo(f"odd: {file}")
'''


@pytest.fixture
def lint(install: Install) -> None:
    entries = "config.lint = tpux_lint:app\nconfig.torn = tpux_torn:app\nrun.lint = tpux_lint:app"
    install("tpux-lint", LINT, entries=entries, group="tpux.commands")


def run(*words: str) -> Result:
    command = typer.main.get_command(app)
    assert isinstance(command, Commands)
    return CliRunner().invoke(command, words, standalone_mode=False)


@pytest.mark.usefixtures("lint")
def test_a_command_in_a_group_is_listed_without_its_import_and_run() -> None:
    assert "config.lint" not in run("--help").output
    shown = run("config", "--help").output
    added = shown.partition("Commands of plugins:")[2]
    assert ["lint", "Find what is odd in a config."] in [line.split(None, 1) for line in added.splitlines()]
    assert ["torn", "see: tpux config torn --help"] in [line.split(None, 1) for line in added.splitlines()]
    assert "tpux_lint" not in sys.modules
    assert run("config", "lint", "a.yaml").output == "odd: a.yaml\n"


@pytest.mark.usefixtures("lint")
def test_a_broken_command_in_a_group_is_named_and_breaks_no_other() -> None:
    error = run("config", "torn").exception
    assert isinstance(error, TpuxError)
    assert error.where == "command config torn (tpux-lint 1.0)"
    assert error.message == "the module 'tpux_torn' is not installed"
    assert run("config", "check", "--help").exit_code == 0


@pytest.mark.usefixtures("lint")
def test_only_a_group_can_be_extended() -> None:
    assert run("run", "lint", "--help").output.startswith("Usage: ")
    rows = {row.name: row for row in command_rows(core_commands())}
    assert rows["config.lint"].status == "ok"
    assert (rows["run.lint"].status, rows["run.lint"].error) == ("broken", "core has no group of commands 'run'")


def test_a_command_of_core_in_a_group_takes_precedence(install: Install) -> None:
    code = "import typer\napp = typer.Typer()"
    install("tpux-mine", code, entries="config.check = tpux_mine:app", group="tpux.commands")
    assert "Validate a config" in run("config", "check", "--help").output
    row = next(row for row in command_rows(core_commands()) if row.name == "config.check")
    assert (row.status, row.error) == ("broken", "core has a command of this name, which is run instead")


@pytest.mark.parametrize("command", ["plugins check", "plugins show", "plugins trace", "config schema"])
def test_a_command_whose_dist_is_not_installed_says_what_to_type(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpux.plugin.entrypoints.find", lambda _: {})
    error = run(*command.split()).exception
    assert f"{command} is not installed: pip install tpux-plugin-testing" in str(error)
