"""What `--help` prints on a terminal of 80 columns."""

from __future__ import annotations

import re


def listed(help_text: str) -> dict[str, str]:
    """Return the commands of a help text, each with its summary, which may have several lines."""
    return {name: text for commands in groups(help_text).values() for name, text in commands.items()}


def groups(help_text: str) -> dict[str, dict[str, str]]:
    """Return the commands of a help text by their group."""
    after = help_text.partition("\nOptions:\n")[2].partition("\n\n")[2]
    return {
        head: dict(re.findall(r"^  (\S+) +(.*(?:\n {4,}.*)*)", section, re.MULTILINE))
        for head, section in re.findall(r"^(\w[\w -]*):\n((?:  .*\n)+)", after, re.MULTILINE)
    }


def test_the_summary_of_every_command_fits_on_its_line(runner):
    runner.env["COLUMNS"] = "80"
    commands = listed(runner("--help").stdout)
    assert {"run", "supervisor", "emulator", "ssh"} <= commands.keys()
    inner = {name: listed(runner(name, "--help").stdout) for name in commands}
    assert {"status", "install"} <= inner["supervisor"].keys()
    assert "rotate-host-key" in inner["emulator"]
    inner["tpux"] = commands
    summaries = [f"{group} {name}: {text}" for group, found in inner.items() for name, text in found.items()]
    assert not [text for text in summaries if not re.fullmatch(r".*[^.]\.", text)]


def test_options_are_described_in_words_that_users_type(runner):
    assert "[default: (1h)]" in runner("exec", "--help").stdout
    assert "Jobs in the state succeeded" in runner("clean", "--help").stdout


def test_the_commands_are_listed_by_group_and_aliases_only_where_they_are_used(runner):
    code = '"""`tpux own`: say something."""\napp = 1'
    runner.plugin("tpux-own", code, entries="own = tpux_own:app", group="tpux.commands")
    shown = groups(runner("--help").stdout)
    assert [*shown][:5] == ["Run", "Watch", "Workers", "Config", "Administration"]
    assert {"run", "stop", "delete"} <= shown["Run"].keys()
    assert {"list", "show", "logs", "history"} <= shown["Watch"].keys()
    assert {"exec", "ssh", "cp", "sync", "restart", "diagnose", "solve"} <= shown["Workers"].keys()
    assert shown["tpux-own"] == {"own": "Say something."}
    assert "cancel" not in listed(runner("--help").stdout)
    assert "Usage: tpux cancel" in runner("cancel", "--help").stdout
