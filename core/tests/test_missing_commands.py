"""Commands whose dist is not installed: core knows which one that is."""

from __future__ import annotations

import pytest
import typer.main
from click.testing import CliRunner

from tpux.cli.main import app


@pytest.mark.parametrize(
    ("command", "dist"),
    [
        ("history", "tpux-plugin-history"),
        ("info", "tpux-plugin-info"),
        ("sweep", "tpux-plugin-sweep"),
        ("tasks", "tpux-plugin-tasks"),
        ("hold", "tpux-plugin-pool"),
        ("find", "tpux-plugin-pool"),
        ("exec", "tpux-plugin-shell"),
        ("cp", "tpux-plugin-shell"),
        ("check", "tpux-plugin-doctor"),
        ("describe", "tpux-plugin-doctor"),
        ("solve", "tpux-plugin-doctor"),
        ("supervisor install", "tpux-plugin-autostart"),
    ],
)
def test_the_error_says_what_to_install(command: str, dist: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpux.plugin.entrypoints.find", lambda _: {})
    error = CliRunner().invoke(typer.main.get_command(app), command.split(), standalone_mode=False).exception
    command = command.replace("describe", "diagnose")
    assert f"{command} is not installed: pip install {dist}" in str(error)
