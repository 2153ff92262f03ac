"""`tpux plugins`: what is installed, and whether it works."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tpux.plugins import Row

app = typer.Typer(name="plugins", rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def _group() -> None:
    """Show what is installed."""  # a callback keeps `list` a word of its own while it is the only command


@app.command("list", epilog="Example: tpux plugins list --json")
def list_(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show each plugin, its hooks and whether it works; imports them all."""
    from tpux.plugins import Plugins

    rows = Plugins().rows()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        typer.echo("\n".join(_table(rows)))
    else:
        typer.echo("no plugin is installed; begin with: pip install tpux-plugin-local", err=True)


def _table(rows: list[Row]) -> list[str]:
    cells = [("NAME", "DIST", "VERSION", "STATUS", "HOOKS")]
    cells += [(row.name, row.dist, row.version, row.status, row.error or ", ".join(row.hooks)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
