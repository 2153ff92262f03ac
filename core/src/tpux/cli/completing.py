"""What a shell is offered when it completes: jobs from local state; nothing that is heavy is imported for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store.jobs import Record
    from tpux.store.state import State


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
        return record.look()
    except (TpuxError, OSError):
        return None  # a prompt is no place for an error: the command itself tells it


def states(incomplete: str) -> list[str]:
    """The states of a job that begin so."""
    from tpux.store.state import TRANSITIONS

    return [state for state in TRANSITIONS if state.startswith(incomplete)]
