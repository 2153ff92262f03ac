"""`tpux plugins`: what is installed, and whether it works."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tpux.cli.common import Json, emit, new_app, say

app = new_app()


@app.callback()
def _group() -> None:
    """Show what is installed."""  # a callback keeps `list` a word of its own while it is the only command


@app.command("list", epilog="Example: tpux plugins list --json")
def list_(json: Json = False) -> None:
    """Show each plugin, its hooks and whether it works; imports them all."""
    from tpux.plugin.manager import Plugins

    rows = Plugins().rows()
    if json:
        emit([asdict(row) for row in rows])
    elif rows:
        from tabulate import tabulate

        cells = [(row.name, row.dist, row.version, row.status, row.error or ", ".join(row.hooks)) for row in rows]
        heads = ("NAME", "DIST", "VERSION", "STATUS", "HOOKS")
        typer.echo(tabulate(cells, headers=heads, tablefmt="plain", disable_numparse=True))
    else:
        say("no plugin is installed; begin with: pip install tpux-plugin-local")
