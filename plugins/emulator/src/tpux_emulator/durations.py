"""Parses durations such as `1m30s`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration: `30s`, `1.5h`, `1m30s`, `250ms`, or a number of seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a duration, such as 30s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text.strip()))


def _parsed(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


# A field in seconds, which also accepts `30s`.
Seconds = Annotated[float, BeforeValidator(_parsed)]
