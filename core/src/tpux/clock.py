"""Injectable clock, so that tests need not sleep and simulations can run faster than real time."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from tpux import env


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Return the wall time, in seconds since the epoch: only for what is written down and for deadlines on disk.

        It jumps when the machine's clock is set.
        """

    def monotonic(self) -> float:
        """Return seconds since some fixed moment: for delays in memory. It never jumps, and stands during a suspend."""

    def sleep(self, seconds: float) -> None:
        """Block for that long."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set, at most for that long. Return whether it is set."""


class SystemClock:
    """The machine's clock, `rate` times as fast from the moment the object is created.

    Args:
        rate: seconds that pass here in one real second; `$TPUX_CLOCK_RATE` if None.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._rate = env.clock_rate() if rate is None else rate
        self._start = time.time()

    def now(self) -> float:
        """Return the wall time, in seconds since the epoch."""
        return self._start + (time.time() - self._start) * self._rate

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic() * self._rate

    def sleep(self, seconds: float) -> None:
        """Block for that long."""
        time.sleep(max(0.0, seconds) / self._rate)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set, at most for that long. Return whether it is set."""
        return event.wait(max(0.0, seconds) / self._rate)
