"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux_emulator.paths import Home, default_home

if TYPE_CHECKING:
    from tpux_emulator.client import Client

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="The emulator's directory. Default: $TPUX_EMULATOR_HOME, or $TPUX_HOME/emulator."),
]

For = Annotated[str | None, typer.Option("--for", help="How long the fault applies. Default: until it is cleared.")]


Commands = Mapping[str, Callable[..., None]]


def add_commands(app: typer.Typer, commands: Commands) -> None:
    """Add commands to an app.

    Args:
        app: the app.
        commands: each command, by what follows `tpux emulator` in its example: its name, and arguments.
    """
    for example, command in commands.items():
        app.command(example.partition(" ")[0], epilog=f"Example: tpux emulator {example}")(command)


def home_at(path: Path | None) -> Home:
    """Return the directory that `--home` selects."""
    return Home(path.expanduser().absolute() if path else default_home())


def client_at(path: Path | None) -> Client:
    """Return a client of the emulator that runs in the directory that `--home` selects."""
    from tpux_emulator.client import Client

    return Client.at(home_at(path))


def duration(text: str) -> float:
    """Parse an option that is a duration; the result is in seconds.

    Raises:
        typer.BadParameter: it is none.
    """
    from tpux.fields import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def optional_duration(text: str | None) -> float | None:
    """Parse an option that is a duration or absent."""
    return None if text is None else duration(text)
