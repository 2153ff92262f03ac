"""`tpux plugins new`: write the project of a new plugin, with its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from tpux.cli.common import echo, new_app, say
from tpux_testing.new_plugin import KINDS

app = new_app()

Directory = Annotated[
    Path, typer.Option("--directory", "-d", metavar="DIR", help="Write the project's directory there.")
]


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
    directory: Directory = Path(),
) -> None:
    """Write the project of a new plugin: code that works, tests, a config.

    It is written to tpux-plugin-NAME. What is printed are the commands to type next: they install the plugin, run its
    tests, and run a job that uses it, on this machine.
    """
    from tpux_testing import new_plugin

    new_plugin.check_name(name, taken(kind))
    written = new_plugin.write(name, kind, directory)
    say_what_is_next(f"the {kind} {name} is written to {written}", written, new_plugin.commands(name, kind))


def taken(kind: str) -> dict[str, str]:
    """Return what has each name that a new plugin of a kind cannot have."""
    from tpux.cli.main import core_commands
    from tpux.plugin.catalog import DIST_OF, RESERVED
    from tpux.plugin.entrypoints import find
    from tpux_testing import directory as directory_of_plugins

    installed = find("tpux.commands") if kind == "command" else find("tpux")
    found = {name: f"{one.dist} is installed" for name, one in installed.items()}
    if kind == "command":
        found |= dict.fromkeys(core_commands(), "tpux has a command of this name")
    else:
        found = {**{word: f"{dist} has it" for word, dist in DIST_OF.items()}, **found}
        found |= dict.fromkeys(RESERVED, "it is reserved for tpux")
    dists = [entry.dist for entry in directory_of_plugins.entries()]
    return {**{dist.removeprefix("tpux-plugin-"): f"there is a {dist}" for dist in dists}, **found}


def say_what_is_next(done: str, project: Path, commands: list[str]) -> None:
    """Say what was written, and print the commands to type next."""
    import shlex

    say(f"{done}; next:")
    first, *others = commands
    for line in (f"cd {shlex.quote(str(project))} && {first}", *others):
        echo(line)
