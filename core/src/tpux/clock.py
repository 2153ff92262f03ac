"""Injectable clock, so that tests need not sleep and simulations can run faster than real time; and observed time.

Which time to use:

- Delays in memory (turns, pauses) use `Clock.monotonic`. The wall time is only for what is stored.
- What is concluded about machines and programs (`watch.lost_after`, `watch.straggler_grace`, `watch.verdict_grace`,
  `job.stalled_after`) uses `ObservedTime`: a suspend, a stopped supervisor or a jump of the clock counts next to
  nothing. The counts outlive the process in `timers.json` (`store/timers.py`).
- What costs money or was promised (`keep_*`, releases, `tpu.provision_timeout`, backoff, the length of an attempt) uses
  real time, a suspend included: `Deadlines`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tpux import env

MAX_INTERVALS = 2
"""Poll intervals that one observation counts at most, even after a suspend or in a process that was stopped."""


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


@dataclass
class _Observed:
    seconds: float = 0.0
    at: float | None = None
    interval: float = 0.0


class ObservedTime:
    """Counts, by name, for how many seconds conditions were observed to last.

    Between two observations of a condition at most `MAX_INTERVALS` of the announced poll interval count, so nothing is
    concluded from a time in which nobody looked.

    Args:
        clock: the current time.
        seconds: what an earlier process had counted; the time since then does not count.
    """

    def __init__(self, clock: Clock, seconds: Mapping[str, float] | None = None) -> None:
        self._clock = clock
        self._observed = {name: _Observed(max(0.0, value)) for name, value in (seconds or {}).items()}

    def observe(self, name: str, interval: float) -> float:
        """Count the time since the last observation of a condition that lasts.

        Args:
            name: the condition.
            interval: seconds until it is planned to be observed again.

        Returns:
            The seconds for which it was observed to last so far; 0 at the first observation.
        """
        now, observed = self._clock.monotonic(), self._observed.setdefault(name, _Observed())
        if observed.at is not None:
            observed.seconds += min(max(0.0, now - observed.at), MAX_INTERVALS * observed.interval)
        observed.at, observed.interval = now, max(0.0, interval)
        return observed.seconds

    def end(self, name: str) -> None:
        """Count a condition from 0 again: it was observed not to hold."""
        self._observed.pop(name, None)

    def clear(self) -> None:
        """Count all conditions from 0 again."""
        self._observed.clear()

    def seconds(self) -> dict[str, float]:
        """Return what was counted, by name, for a later process."""
        return {name: observed.seconds for name, observed in list(self._observed.items())}
