"""`tpux completion`: the script by which a shell completes commands, options, and the ids and names of jobs."""

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
    """Print the script that makes a shell complete `tpux`; have the file source it that the shell reads at start."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="tpux", complete_var="_TPUX_COMPLETE", shell=shell))


def jobs(incomplete: str) -> list[tuple[str, str]]:
    """The ids that begin so, and the names that stand for one job alone; the newest first.

    Args:
        incomplete: what was typed so far.
    """
    from collections import Counter

    from tpux.store import Store

    states = [state for record in reversed([*Store().records()]) if (state := _look(record))]
    named = Counter(state.name for state in states)
    offers = [(state.id, f"{state.name}, {state.state}") for state in states]
    offers += [(state.name, f"{state.id}, {state.state}") for state in states if named[state.name] == 1]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def _look(record: Record) -> State | None:
    try:
        return record.refresh()
    except (TpuxError, OSError):
        return None  # a prompt is no place for an error: the command itself tells it


def states(incomplete: str) -> list[str]:
    """The states of a job that begin so."""
    from tpux.store.state import TRANSITIONS

    return [state for state in TRANSITIONS if state.startswith(incomplete)]
