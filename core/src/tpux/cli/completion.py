"""`tpux completion`: shell completion of commands, options and jobs, from the local store without heavy imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux.console import new_app
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store.record import Record
    from tpux.store.state import State

app = new_app()


@app.command(epilog="Example: source <(tpux completion bash)\n\nExample: tpux completion fish | source")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the completion script of a shell; source it in the shell's start-up file."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="tpux", complete_var="_TPUX_COMPLETE", shell=shell))


def jobs(incomplete: str) -> list[tuple[str, str]]:
    """Complete job ids, and names that only one job has; newest first.

    Args:
        incomplete: what was typed so far.

    Returns:
        Each completion and its description.
    """
    from collections import Counter

    from tpux.store import Store

    try:
        records = [*Store().records()]
    except (TpuxError, OSError):
        return []  # an error would garble the prompt; the command itself reports it
    states = [state for record in reversed(records) if (state := _state_of(record))]
    named = Counter(state.name for state in states)
    found = [(state.id, f"{state.name}, {state.state}") for state in states]
    found += [(state.name, f"{state.id}, {state.state}") for state in states if named[state.name] == 1]
    return [item for item in found if item[0].startswith(incomplete)]


def _state_of(record: Record) -> State | None:
    try:
        return record.refresh()
    except (TpuxError, OSError):
        return None  # an error would garble the prompt; the command itself reports it


def states(incomplete: str) -> list[str]:
    """Complete the states of a job."""
    from tpux.store.state import TRANSITIONS

    return [state for state in TRANSITIONS if state.startswith(incomplete)]


def plugins(incomplete: str) -> list[str]:
    """Complete the names of the installed plugins."""
    from tpux.plugin.entrypoints import find

    return [name for name in find("tpux") if name.startswith(incomplete)]
