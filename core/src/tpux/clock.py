"""Time, injected: what waits takes a clock, so that tests do not sleep and rehearsals run faster."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from tpux import env


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait that long, or until `event` is set; whether it is."""


class SystemClock:
    """The machine's clock, `rate` times as fast (`$TPUX_CLOCK_RATE`), counted from when it was made."""

    def __init__(self, rate: float | None = None) -> None:
        self._rate = env.clock_rate() if rate is None else rate
        self._start = time.time()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._start + (time.time() - self._start) * self._rate

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        time.sleep(max(0.0, seconds) / self._rate)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait that long, or until `event` is set; whether it is."""
        return event.wait(max(0.0, seconds) / self._rate)
