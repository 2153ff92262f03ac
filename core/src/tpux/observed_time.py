"""Time during which a condition was observed to last, as opposed to time that has merely passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpux.clock import Clock

MAX_INTERVALS = 2
"""Poll intervals that one observation counts at most, even after a suspend or in a process that was stopped."""


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
