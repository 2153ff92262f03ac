"""Calls of plugins that did not return and that a stop or delete has cut off: `cut-off.json` in the job's directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tpux.plugin import calls, spec
from tpux.plugin.calls import RunningCall
from tpux.store import files

CUT_OFF = "cut-off.json"
"""The file: a message about each of these calls, by `cut_off_key`."""
TRANSPORT_HOOKS = ("connect", "current_workers")
"""Called to connect to a worker. What a transport's connection does counts as `connect`."""


def cut_off_key(call: RunningCall) -> str:
    """Return the key of a call in `CUT_OFF`: `plugin NAME` if the job cannot be opened without it, else the hook."""
    opening = {calls.IMPORT, calls.VALIDATION, spec.config_section.__name__, spec.tpu_section.__name__}
    return f"plugin {call.name}" if call.hook in opening else call.hook


def mark_cut_off(directory: Path, calls: Iterable[RunningCall]) -> None:
    """Write that a stop or delete ends these calls with the supervisor's process: the next one leaves them out.

    Args:
        directory: the job's.
        calls: the calls that do not return.

    Raises:
        OSError: it cannot be written.
    """
    path = directory / CUT_OFF
    files.write_atomic(
        path, files.dump({**(files.load(path) or {}), **{cut_off_key(call): str(call) for call in calls}})
    )


def read_cut_off(directory: Path) -> dict[str, str]:
    """Return what `mark_cut_off` has written for a job, by `cut_off_key`."""
    return {key: str(call) for key, call in (files.load(directory / CUT_OFF) or {}).items()}
