"""The user wants the job stopped: its programs end, and its machines are kept or given back."""

from __future__ import annotations

from tpux.lifecycle.ending import Ender
from tpux.lifecycle.releasing import release_at
from tpux.lifecycle.work import Work


def stopping(work: Work) -> float:
    """End the programs on every worker, confirmed; then the job is stopped."""
    if work.state.allocation is not None:
        work.ender = work.ender or Ender(work)
        if (delay := work.ender.turn()) is not None:
            return delay
    work.forget()
    work.move("stopped", why="as the user wanted", release_at=release_at(work, "stopped"))
    return 0
