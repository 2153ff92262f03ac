"""Time as the allocators count it."""

from __future__ import annotations

import time

from tpux import clock_rate


def now() -> float:
    """Seconds that only differences are taken of: as fast as tpux' clock, and steady over a supervisor's restart."""
    return time.time() * clock_rate()
