"""Hints, as a user can follow them now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpux.plugin.catalog import DIST_OF_COMMAND
from tpux.plugin.entrypoints import added_commands

if TYPE_CHECKING:
    from tpux.api.job_info import JobInfo
    from tpux.store.state import State

_NEEDS_END = {"solve", "setup"}
_NEEDS_MACHINES = {"exec", "ssh", "cp", "solve", "check"}
"""Commands of hints that need a job that has ended, or one that holds machines."""


def current_hint(hint: str, state: State | JobInfo) -> str:
    """Return a hint with what its commands need in the job's present state: it may be older than that. Since 0.1.

    Args:
        hint: names the job by its number in commands.
        state: the job's present state.
    """
    job = int(state.id)
    named = set(re.findall(rf"\btpux ([a-z-]+) {job}\b", hint))
    for command in sorted(name for name in named & DIST_OF_COMMAND.keys() if name not in added_commands()):
        hint += f" (tpux {command} is not installed: pip install {DIST_OF_COMMAND[command]})"
    if state.state == "succeeded":  # there is nothing to resume
        hint = re.sub(rf"\btpux (resume|setup) {job}\b", f"tpux rerun {job}", hint)
    commands = set(re.findall(rf"\btpux ([a-z-]+) {job}\b", hint))
    if commands & _NEEDS_MACHINES and state.machines is None:
        again = "rerun" if state.state == "succeeded" else "resume"
        held = (
            f"the job holds no machines now; tpux {again} {job} requests new ones"
            if state.ended
            else "once the job has machines again"
        )
        return f"{hint} ({held})"
    if commands & _NEEDS_END and not state.ended:
        return f"stop the job first (tpux stop {job}), then: {hint}"
    return hint
