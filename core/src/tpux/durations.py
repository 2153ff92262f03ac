"""Durations as text: `parse_duration` reads them from configs and options, `format_duration` writes them for people."""

from __future__ import annotations

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "ms": 0.001, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|ms|m|s)")

LONGEST = 100 * 365 * 86400.0
"""Seconds in the longest duration: a moment so far away is one that the system's functions for times still know."""
PATTERN = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?\s*(d|h|min|ms|m|s)\s*)+)\s*$"
"""What `parse_duration` accepts, as a regular expression in the dialect that JSON Schema and Python share."""


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as `30s`, `250ms`, `1m30s`, `2 h 10 min`, `1.5d`, or in a bare number.

    Raises:
        ValueError: the text is not a duration, or a longer one than `LONGEST`.
    """
    if not re.match(PATTERN, text, re.ASCII):
        raise ValueError(f"{text!r} is not a duration: write seconds, or 250ms, 30s, 5m, 1h30m, 1d")
    parts = _PART.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)
    if seconds > LONGEST:
        raise ValueError(f"the duration {text[:20]} is too long: the maximum is {LONGEST / 86400:.0f}d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration for people, in its two largest units: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 1 d 2 h.

    Args:
        seconds: how long; below 0 counts as 0.
    """
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_age(seconds: float) -> str:
    """Return an age in its largest unit, for a column: 12s, 3m, 2h, 5d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"
