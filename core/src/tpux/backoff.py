"""Capped exponential backoff: the one place that computes how long to wait before a retry."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """The delays between retries: `first`, then `factor` times the one before, never more than `cap`.

    Attributes:
        first: seconds before the first retry.
        cap: the longest delay, in seconds.
        factor: growth from one delay to the next, at least 1.
        jitter: the share of a delay that is random, from 0 to 1, so that many clients do not retry at the same moment.
    """

    first: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before a retry.

        Args:
            retry: how many retries came before it, 0 for the first. Any size: the result cannot overflow.
        """
        try:
            delay = min(self.first * self.factor**retry, self.cap)
        except OverflowError:
            delay = self.cap if self.first else 0.0
        return delay * random.uniform(1 - self.jitter, 1) if self.jitter else delay  # noqa: S311  (no secret)
