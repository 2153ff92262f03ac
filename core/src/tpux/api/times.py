"""Times: those that users give and see, and those in `--json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import TYPE_CHECKING

from tpux.durations import parse_duration
from tpux.errors import UsageError

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

SINCE = "today, yesterday, a date such as 2026-11-20, a time such as 10:00, or a time ago such as 10m or 7d"
"""What `parse_since` accepts, for the help of an option."""

_TIMES = {"at", "ended_at", "release_at", "until"}
"""The fields of events and failures that are times."""
_DATA_OF_PLUGINS = {"data", "saved_state", "values"}
"""Their fields whose content plugins define."""
_TIME_OF_DAY = re.compile(r"\d\d:\d\d(:\d\d)?")


def parse_since(text: str, now: float) -> float:
    """Return the time (seconds since the epoch) that an option `--since` stands for; `10:00` is the last one.

    Raises:
        UsageError: it stands for none, or for one that is to come.
    """
    begin = _parse_since(text, now)
    if begin > now:
        hint = "write a time that has passed, such as yesterday or 12h"
        raise UsageError(f"--since {text}: {local_time(begin)[:16]} is in the future", hint=hint)
    return begin


def _parse_since(text: str, now: float) -> float:
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if text in {"today", "yesterday"}:
        return (today - timedelta(days=text == "yesterday")).timestamp()
    with suppress(ValueError):
        return now - parse_duration(text)
    with suppress(ValueError):
        if not _TIME_OF_DAY.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
        at = datetime.combine(today, time_of_day.fromisoformat(text))
        return (at if at.timestamp() <= now else at - timedelta(days=1)).timestamp()
    raise UsageError(f"--since {text}: not a time", hint=f"write {SINCE}")


def local_time(at: float) -> str:
    """Return a time (seconds since the epoch) for people, in this machine's time zone."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def iso(at: float) -> str:
    """Return a time (seconds since the epoch) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def with_iso_times(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return an event or a failure for `--json`: its times as ISO 8601, what plugins have stored as it is."""
    shown: dict[str, JsonValue] = {}
    for name, value in data.items():
        if name in _TIMES and isinstance(value, (int, float)):
            shown[name] = iso(value)
        elif isinstance(value, dict) and name not in _DATA_OF_PLUGINS:
            shown[name] = with_iso_times(value)
        else:
            shown[name] = value
    return shown
