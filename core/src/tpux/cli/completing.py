"""What a shell is offered when it completes: jobs from local state; nothing that is heavy is imported for it."""

from __future__ import annotations

from tpux.errors import TpuxError


def jobs(incomplete: str) -> list[tuple[str, str]]:
    """The ids that begin so, and the names that stand for one job alone; the newest first.

    Args:
        incomplete: what was typed so far.
    """
    from tpux.store import Store

    try:
        states = [record.look() for record in Store().records()]
    except (TpuxError, OSError):
        return []  # a prompt is no place for an error: the command itself tells it
    states.reverse()
    names = [state.name for state in states]
    offers = [(state.id, f"{state.name}, {state.state}") for state in states]
    offers += [(state.name, f"{state.id}, {state.state}") for state in states if names.count(state.name) == 1]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def states(incomplete: str) -> list[str]:
    """The states of a job that begin so."""
    from tpux.store.state import TRANSITIONS

    return [state for state in TRANSITIONS if state.startswith(incomplete)]
