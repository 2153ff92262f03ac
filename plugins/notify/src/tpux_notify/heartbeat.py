"""The heartbeat: a URL that is requested while the supervisor's main loop runs."""

from __future__ import annotations

import time

from tpux.api.machines import clock_rate
from tpux_notify import children

EVERY = 300.0
"""Seconds between two requests."""
_SLACK = 5.0
"""A tick that comes a moment early must not make the next request a minute late."""
_last: dict[str, float] = {}


def beat(url: str) -> None:
    """Request the URL in a child process, if it has not been within `EVERY`; several jobs may name the same one."""
    now = time.monotonic() * clock_rate()
    if now - _last.get(url, -EVERY) >= EVERY - _SLACK:
        _last[url] = now
        children.start({"heartbeat": url})
