"""Durations as people and the API write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")


def parse_duration(text: str) -> float:
    """The seconds in `30s`, `1.5h`, `1m30s`, `250ms`; a bare number is seconds.

    Raises:
        ValueError: the text is no duration.
    """
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no duration: write 30s, 5m, 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text.strip()))


def _parsed(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


# A field that holds seconds and may be given as `30s`.
Seconds = Annotated[float, BeforeValidator(_parsed)]
