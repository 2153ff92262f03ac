"""Output conventions of every command, core's and plugins': data on stdout, messages on stderr."""

from __future__ import annotations

import json
import sys

import typer

from tpux.errors import UsageError


def new_app() -> typer.Typer:
    """Return a typer app without rich, which would double the start-up time."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def say(text: str) -> None:
    """Print a status message to stderr."""
    typer.echo(f"tpux: {text}", err=True)


def emit(data: object) -> None:
    """Print JSON to stdout."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm a destructive command.

    Args:
        question: the question.
        yes: the user has already confirmed (`-y`).

    Raises:
        UsageError: stdin is not a terminal.
        typer.Abort: the user declined.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Confirmation needed, but stdin is not a terminal", hint="pass -y to confirm")
    typer.confirm(question, abort=True, err=True)
