"""`tpux plugins new`: write the project of a new plugin, with its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from tpux.cli.common import echo, new_app, say
from tpux_testing.new_plugin import KINDS

app = new_app()


@app.command(
    epilog="Example: tpux plugins new greeting --kind module\n\nExample: tpux plugins new pool --kind allocator"
)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What a config, or who types a command, calls it.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind", "-k", metavar="KIND", click_type=click.Choice([*KINDS]), help=f"What it is: {', '.join(KINDS)}."
        ),
    ],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", metavar="DIR", help="Write the project's directory there.")
    ] = Path(),
) -> None:
    """Write the project of a new plugin: code that works, tests, a config.

    It is written to tpux-plugin-NAME. What is printed are the commands to type next: they install the plugin, run its
    tests, and run a job that uses it, on this machine.
    """
    from tpux.cli.main import core_commands
    from tpux.plugin.catalog import DIST_OF, RESERVED
    from tpux.plugin.entrypoints import find
    from tpux_testing import directory as directory_of_plugins
    from tpux_testing import new_plugin

    installed = find("tpux.commands") if kind == "command" else find("tpux")
    taken = {name: f"{one.dist} is installed" for name, one in installed.items()}
    if kind == "command":
        taken |= dict.fromkeys(core_commands(), "tpux has a command of this name")
    else:
        taken = {**{word: f"{dist} has it" for word, dist in DIST_OF.items()}, **taken}
        taken |= dict.fromkeys(RESERVED, "it is reserved for tpux")
    dists = [entry.dist for entry in directory_of_plugins.entries()]
    taken = {**{dist.removeprefix("tpux-plugin-"): f"there is a {dist}" for dist in dists}, **taken}
    new_plugin.check_name(name, taken)
    written = new_plugin.write(name, kind, directory)
    say(f"the {kind} {name} is written to {written}; next:")
    first, *others = new_plugin.commands(name, kind)
    for line in (f"cd {_quoted(written)} && {first}", *others):
        echo(line)


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
