"""How every command speaks, core's and the plugins': data on stdout, all else on stderr, nothing guessed."""

from __future__ import annotations

import json
import sys

import typer

from tpux.errors import UsageError


def new_app() -> typer.Typer:
    """A typer app that imports neither rich nor anything else it does not need."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def say(text: str) -> None:
    """Tell the user something that is no data."""
    typer.echo(f"tpux: {text}", err=True)


def emit(data: object) -> None:
    """Print JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed.

    Raises:
        UsageError: there is no terminal to ask on.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on", hint="say yes with -y")
    typer.confirm(question, abort=True, err=True)
