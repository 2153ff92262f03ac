"""`tpux plugins`: show the installed plugins and their status; other dists add commands, such as `check`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tpux.cli.common import Group, Json, emit, new_app, say
from tpux.tables import print_table

if TYPE_CHECKING:
    from tpux.plugin.status import PluginStatus

app = new_app()


@app.callback(cls=Group)
def _group() -> None:
    """Show the installed plugins, and whether they work."""


@app.command("list", epilog="Example: tpux plugins list --json")
def list_(json: Json = False) -> None:
    """Show each plugin and command: what it is, does, and its status.

    It imports them all.
    """
    from tpux.cli.main import core_commands
    from tpux.plugin.entrypoints import unknown_disabled_plugins
    from tpux.plugin.local_files import DIST
    from tpux.plugin.manager import Plugins
    from tpux.plugin.status import kind_of

    for problem in unknown_disabled_plugins():
        say(f"warning: {problem}")
    rows = Plugins().with_own_files().rows(core_commands())
    if json:
        emit([asdict(row) for row in rows])
    elif rows:
        print_table(
            {
                "name": [row.name for row in rows],
                "kind": [kind_of(row) for row in rows],
                "version": [row.dist if row.dist == DIST else row.version for row in rows],
                "status": [row.status for row in rows],
                "adds": [_adds(row) for row in rows],
            },
            shorten={"adds": 10},
        )
        for row in rows:
            if row.error and row.status != "disabled":
                say(f"{row.status}: {row.kind} {row.name} ({row.dist} {row.version}): {row.error}\n  hint: {row.hint}")
    else:
        say("no plugins are installed; start with: pip install tpux-plugin-local")


def _adds(row: PluginStatus) -> str:
    """Return what a plugin or a command does, as its module says it."""
    from tpux.plugin.entrypoints import command_help, find, module_summary
    from tpux.plugin.local_files import DIST

    if row.dist == DIST:
        return row.version
    if row.kind == "command":
        return command_help(find("tpux.commands")[row.name])[1]
    said = module_summary(find("tpux")[row.name]).rpartition("`: ")[2]
    return said[:1].upper() + said[1:]
