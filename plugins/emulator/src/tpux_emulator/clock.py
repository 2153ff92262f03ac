"""The emulated time, which may run faster than real time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from tpux import TpuxError

RATE_VARIABLE = "TPUX_CLOCK_RATE"


def rate_from_environment() -> float:
    """Return how many emulated seconds pass in a real second: `TPUX_CLOCK_RATE`, or 1.

    Raises:
        TpuxError: the variable is not a number above zero.
    """
    text = os.environ.get(RATE_VARIABLE, "1")
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise TpuxError(
            f"{RATE_VARIABLE} is {text!r}, not a number above zero", hint=f"{RATE_VARIABLE}=60 makes a minute a second"
        )
    return rate


@dataclass(frozen=True)
class Clock:
    """A clock that showed `base` when the real time was `anchor`, and runs `rate` times as fast as real time.

    Args:
        rate: emulated seconds per real second.
        anchor: real Unix seconds.
        base: emulated Unix seconds.
    """

    rate: float
    anchor: float
    base: float

    def now(self) -> float:
        """Return the emulated time in Unix seconds."""
        return self.base + (time.time() - self.anchor) * self.rate

    def real_seconds(self, emulated: float) -> float:
        """Return the real seconds that an emulated duration takes; at least 0."""
        return max(0.0, emulated / self.rate)


def format_timestamp(seconds: float) -> str:
    """Format Unix seconds as the API does: RFC 3339 in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> float:
    """Return the Unix seconds of an RFC 3339 timestamp; without a time zone it is UTC.

    Raises:
        ValueError: the text is not a timestamp.
    """
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
