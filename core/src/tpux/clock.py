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

    def boottime(self) -> float:
        """Return seconds since some fixed moment: for delays in real time. It never jumps, and includes a suspend."""

    def sleep(self, seconds: float) -> None:
        """Block for that long."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set, at most for that long. Return whether it is set."""


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # only Linux has two: elsewhere it includes a suspend


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

    def boottime(self) -> float:
        """Return seconds since some fixed moment, those of a suspend included."""
        return time.clock_gettime(_BOOTTIME) * self._rate

    def sleep(self, seconds: float) -> None:
        """Block for that long."""
        time.sleep(max(0.0, seconds) / self._rate)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set, at most for that long. Return whether it is set."""
        return event.wait(max(0.0, seconds) / self._rate)


class Deadlines:
    """How long it is until deadlines that are stored as a wall time and a duration.

    Within this process a change of the wall clock moves none of them. A later process trusts the wall time again, but
    never waits longer than the duration.

    Args:
        clock: the current time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[tuple[float, float], float] = {}

    def left(self, at: float, duration: float) -> float:
        """Return the seconds until a deadline, not more than its duration; 0 or less once it has passed.

        Args:
            at: the deadline, in seconds since the epoch, as it was stored.
            duration: how many seconds it was away when it was stored.
        """
        now = self._clock.boottime()
        return self._ends.setdefault((at, duration), now + min(at - self._clock.now(), duration)) - now

    def clear(self) -> None:
        """Forget all deadlines."""
        self._ends.clear()
