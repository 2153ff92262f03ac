"""`tpux plugins`: show the installed plugins and their status."""

from __future__ import annotations

from dataclasses import asdict

from tpux.cli.common import Json, echo, emit, new_app, say

app = new_app()


@app.callback()
def _group() -> None:
    """Show the installed plugins."""  # without a callback, typer would make the single command the group itself


@app.command("list", epilog="Example: tpux plugins list --json")
def list_(json: Json = False) -> None:
    """Show each plugin and each command of plugins, its hooks and its status; imports them all."""
    from tpux.cli.main import COMMANDS
    from tpux.plugin.manager import Plugins

    rows = Plugins().rows(COMMANDS)
    if json:
        emit([asdict(row) for row in rows])
    elif rows:
        from tabulate import tabulate

        cells = [
            (row.name, row.dist, row.version, row.status, ", ".join(row.hooks) or ("command" * (row.kind == "command")))
            for row in rows
        ]
        headers = ("NAME", "DIST", "VERSION", "STATUS", "HOOKS")
        echo(tabulate(cells, headers=headers, tablefmt="plain", disable_numparse=True))
        for row in rows:
            if row.error and row.status != "disabled":
                say(f"{row.status}: {row.kind} {row.name} ({row.dist} {row.version}): {row.error}\n  hint: {row.hint}")
    else:
        say("no plugins are installed; start with: pip install tpux-plugin-local")
