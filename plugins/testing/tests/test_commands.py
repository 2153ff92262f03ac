"""The fixture `tpux_cli`, and the contract of commands with commands that violate it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tpux_testing import CommandLine, ContractError, command_contract

GOOD = '''
"""`tpux zoo`: count animals."""
from typing import Annotated
import typer
from tpux import UsageError, api
from tpux.api.options import Json
app = api.new_app()
@app.command(epilog="Example: tpux zoo lion")
def zoo(animal: Annotated[str, typer.Argument(help="Which.")], json: Json = False) -> None:
    """Count animals."""
    if animal == "unicorn":
        raise UsageError("there is no unicorn")
    api.say("counting")
    api.emit({animal: 1}) if json else print("one", animal)
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory whose modules can be imported, here and in the commands, with the dist of `tpux zoo`."""
    site = tmp_path / "site"
    info = site / "tpux_counter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tpux-counter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tpux.commands]\nzoo = tpux_counter:app\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delitem(sys.modules, "tpux_counter", raising=False)
    return site


def test_a_command_that_keeps_the_contract(site: Path) -> None:
    (site / "tpux_counter.py").write_text(GOOD)
    command_contract("zoo", ["lion"], ["lion", "--json"], wrong=[["unicorn"], []])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('    """Count animals."""\n', ""), "`tpux zoo --help` does not say what it does"),
        (("json: Json", "json: bool"), "`tpux zoo --help` does not describe --json"),
        (("tpux zoo lion", "zoo"), "`tpux zoo --help` has no example"),
        (("raise UsageError", "raise SystemExit"), "`tpux zoo unicorn` exited with 1, not with 2"),
        (("raise UsageError", "print(1); raise UsageError"), "`tpux zoo unicorn` writes to stdout"),
        (("api.say(", "print("), "`tpux zoo lion --json` does not print JSON to stdout"),
        (("api.say(", "raise KeyError("), "an exception that is not for users; raise TpuxError"),
        (("api.say(", "raise UsageError("), "`tpux zoo lion --json` exited with 2, which is for errors of use"),
        (("app = api.new_app()", "app = 1\nraise ValueError('why')"), "why"),
    ],
)
def test_mistakes_are_found(site: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    (site / "tpux_counter.py").write_text(GOOD.replace(*change))
    with pytest.raises(ContractError, match="plugin zoo") as raised:
        command_contract("zoo", ["lion", "--json"], wrong=[["unicorn"]])
    assert message in str(raised.value)


def test_a_command_that_is_not_installed() -> None:
    with pytest.raises(ContractError, match="no entry point of the group"):
        command_contract("no such")


@pytest.mark.parametrize(
    ("command", "calls", "wrong"),
    [
        ("config schema", [[]], [["file"]]),
        ("plugins check", [["history"], ["history", "--json"]], [["nonsense"], []]),
        ("plugins show", [["local"], ["local", "--json"]], [["nonsense"], []]),
        ("plugins trace", [], [["77"], []]),
    ],
)
def test_the_commands_of_this_dist(command: str, calls: list[list[str]], wrong: list[list[str]]) -> None:
    command_contract(command, *calls, wrong=wrong)


@pytest.mark.system
@pytest.mark.process
def test_jobs_of_the_fixture_keep_their_machines_and_are_deleted_afterwards(tmp_path: Path) -> None:
    with CommandLine(tmp_path) as cli:
        released = cli.run_job("command: exit 3\n")
        kept = cli.run_job({"command": {"cmd": "touch made"}}, keep=True)
        assert re.findall("failed|succeeded", cli("list").stdout) == ["failed", "succeeded"]
        assert "[0] made\n" in cli("exec", kept, "ls").stdout
        cli("exec", released, "ls", code=None)
        with pytest.raises(AssertionError, match="`tpux show 77` exited with 2"):
            cli("show", "77")
    assert not [*tmp_path.glob("home/.tpux/jobs/*/0*")]
