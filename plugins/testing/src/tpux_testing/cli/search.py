"""`tpux plugins search`: find a plugin in the directory, without a network."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tpux.cli.common import Json, emit, new_app, say
from tpux.tables import print_table

app = new_app()


@app.command(epilog="Example: tpux plugins search docker\n\nExample: tpux plugins search listener --json")
def search(
    word: Annotated[list[str], typer.Argument(metavar="WORD...", help="What it is, does or is called.")],
    json: Json = False,
) -> None:
    """Find a plugin in the directory: all that have each WORD.

    The directory is part of tpux-plugin-testing, and names the plugins of others too; it is as old as that. Install
    what is found with pip.
    """
    from importlib.metadata import distributions

    from tpux.plugin.dists import normalized
    from tpux_testing.directory import search as search_in

    found = search_in(" ".join(word))
    here = {normalized(dist.name) for dist in distributions() if dist.name}
    if json:
        emit([{**asdict(entry), "installed": entry.dist in here} for entry in found])
    elif found:
        print_table(
            {
                "dist": [entry.dist for entry in found],
                "kind": [", ".join(entry.kinds) for entry in found],
                "installed": ["yes" if entry.dist in here else "no" for entry in found],
                "adds": [entry.summary for entry in found],
            },
            shorten={"adds": 10},
        )
    else:
        say(f"no plugin is known for {' '.join(word)!r}; tpux plugins new NAME --kind KIND begins one")
