"""What the commands share: which emulator is meant, and how durations are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux_emulator.paths import Home, default_home

if TYPE_CHECKING:
    from tpux_emulator.client import Client

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="The emulator's directory; default $TPUX_EMULATOR_HOME or ~/.tpux/emulator."),
]

For = Annotated[str | None, typer.Option("--for", help="For how long; without it until it is lifted.")]


def home_at(path: Path | None) -> Home:
    """The state that is meant."""
    return Home(path.expanduser().absolute() if path else default_home())


def client_at(path: Path | None) -> Client:
    """The running emulator that is meant."""
    from tpux_emulator.client import Client

    return Client.at(home_at(path))


def duration(text: str) -> float:
    """The value of an option that is a duration."""
    from tpux_emulator.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def optional_duration(text: str | None) -> float | None:
    """Return the seconds of an option that may be absent."""
    return None if text is None else duration(text)
