"""The word that names a plugin or a command of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux.cli import completion
from tpux.errors import UsageError
from tpux.plugin.catalog import install_hint
from tpux.plugin.dists import normalized

if TYPE_CHECKING:
    from tpux.plugin.manager import Plugins
    from tpux.plugin.status import PluginStatus

WordArg = Annotated[
    str, typer.Argument(metavar="PLUGIN", help="The plugin's name, as in a config.", autocompletion=completion.plugins)
]

PluginOrDist = Annotated[
    str,
    typer.Argument(
        metavar="PLUGIN", help="The plugin's name, as in a config, or a dist's.", autocompletion=completion.plugins
    ),
]


def installed_commands() -> list[PluginStatus]:
    """Return the commands of all plugins, with their status; imports them."""
    from tpux.cli.main import core_commands
    from tpux.plugin.status import command_rows

    return command_rows(core_commands())


def command_only(word: str, plugins: Plugins, commands: list[PluginStatus]) -> PluginStatus | None:
    """Return the command of that name, if no plugin has it.

    Raises:
        UsageError: no command has it either.
    """
    if word in plugins.names(disabled=True):
        return None
    found = next((one for one in commands if one.name == word), None)
    if found is None:
        raise UsageError(f"no plugin {word!r} is installed", hint=install_hint(word, plugins.names()))
    return found


def names_of_dist(
    dist: str, plugins: Plugins, commands: list[PluginStatus]
) -> list[tuple[str, Literal["plugin", "command"]]]:
    """Return the plugins and commands that a dist provides, none if a plugin or command has that name itself."""
    rows = [*map(plugins.status, plugins.names(disabled=True)), *commands]
    if any(row.name == dist for row in rows):
        return []
    return [(row.name, row.kind) for row in rows if row.dist and normalized(row.dist) == normalized(dist)]
