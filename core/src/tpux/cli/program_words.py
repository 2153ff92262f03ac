"""Commands whose words after `--` are the program's."""

from __future__ import annotations

import click
import typer.core

SEPARATOR = "--"


class ProgramWords(typer.core.TyperCommand):
    """A command whose last argument keeps the `--` that separates the program's words, which click would drop."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, those after the first `--` as positional ones that begin with it."""
        if SEPARATOR in args:
            at = args.index(SEPARATOR)
            args = [*args[:at], SEPARATOR, *args[at:]]
        return super().parse_args(ctx, args)
