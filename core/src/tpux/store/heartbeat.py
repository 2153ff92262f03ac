"""Whether the supervisor's main loop moves, as other processes see it; `tpux.supervisor.heartbeat` writes the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

FILE = "heartbeat"
"""The name of the file in the supervisor's directory; its time is when the loop moved last, by CLOCK_MONOTONIC."""
STUCK_AFTER = 30.0
"""Seconds without a heartbeat after which commands say so."""


def silence(supervisor: Path) -> float:
    """Return for how many seconds the loop of the running supervisor, of this boot, has not moved; 0 if it moves.

    Also 0 where that cannot be known, as on a file system that has become read-only.

    Args:
        supervisor: the supervisor's directory.
    """
    path = supervisor / FILE
    try:
        seconds = time.monotonic() - path.stat().st_mtime
    except OSError:
        return 0.0
    return seconds if seconds > STUCK_AFTER and os.access(path, os.W_OK) else 0.0
