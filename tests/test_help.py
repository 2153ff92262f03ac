"""What `--help` prints on a terminal of 80 columns."""

from __future__ import annotations

import re


def listed(help_text: str) -> dict[str, str]:
    """Return the commands of a help text, each with its summary, which may have several lines."""
    sections = re.findall(r"^Commands[\w ]*:\n((?:  .*\n)+)", help_text, re.MULTILINE)
    return {
        name: text
        for section in sections
        for name, text in re.findall(r"^  (\S+) +(.*(?:\n {4,}.*)*)", section, re.MULTILINE)
    }


def test_the_summary_of_every_command_fits_on_its_line(runner):
    runner.env["COLUMNS"] = "80"
    commands = listed(runner("--help").stdout)
    assert {"run", "supervisor", "emulator", "ssh"} <= commands.keys()
    groups = {name: listed(runner(name, "--help").stdout) for name in commands}
    assert {"status", "install"} <= groups["supervisor"].keys()
    assert "rotate-host-key" in groups["emulator"]
    groups["tpux"] = commands
    summaries = [f"{group} {name}: {text}" for group, found in groups.items() for name, text in found.items()]
    assert not [text for text in summaries if not re.fullmatch(r".*[^.]\.", text)]


def test_options_are_described_in_words_that_users_type(runner):
    assert "[default: (1h)]" in runner("exec", "--help").stdout
    assert "Jobs in the state succeeded" in runner("clean", "--help").stdout
