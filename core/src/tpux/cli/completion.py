"""`tpux completion`: shell completion of commands, options and jobs, from the local store without heavy imports."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tpux.api.options import complete_jobs as jobs
from tpux.console import new_app

__all__ = ["app", "jobs", "plugins", "states"]

app = new_app()


@app.command(epilog="Example: source <(tpux completion bash)\n\nExample: tpux completion fish | source")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the completion script of a shell; source it in the shell's start-up file."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="tpux", complete_var="_TPUX_COMPLETE", shell=shell))


def states(incomplete: str) -> list[str]:
    """Complete the states of a job."""
    from tpux.store.state import TRANSITIONS

    return [state for state in TRANSITIONS if state.startswith(incomplete)]


def plugins(incomplete: str) -> list[str]:
    """Complete the names of the installed plugins."""
    from tpux.plugin.entrypoints import find

    return [name for name in find("tpux") if name.startswith(incomplete)]
