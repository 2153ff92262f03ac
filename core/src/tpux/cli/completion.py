"""`tpux completion`: the script by which a shell completes commands, options, and the ids and names of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tpux.cli.common import new_app

app = new_app()


@app.command(epilog="Example: source <(tpux completion bash)\n\nExample: tpux completion fish | source")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script that makes a shell complete `tpux`; have the file source it that the shell reads at start."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="tpux", complete_var="_TPUX_COMPLETE", shell=shell))
