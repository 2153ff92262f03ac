"""A value that is computed when it is first used, by any thread, and again after what it depends on has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Computed(Generic[T]):
    """A value that is kept until `clear`.

    A thread that was computing it then gets the former value, and does not keep it: another thread has read what was
    there before the change. Without `functools.cached_property`, which before Python 3.12 has one lock for all objects.

    Args:
        compute: returns the value; several threads may call it at once.
    """

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._kept: list[T] = []
        self._changes = 0

    def get(self) -> T:
        """Return the value.

        Raises:
            Exception: what `compute` raised; nothing is kept then.
        """
        with self._lock:
            if self._kept:
                return self._kept[0]
            changes = self._changes
        value = self._compute()
        with self._lock:
            if changes == self._changes:
                self._kept = [value]
        return value

    def clear(self) -> None:
        """Compute the value again when it is next used."""
        with self._lock:
            self._kept = []
            self._changes += 1

    @property
    def is_kept(self) -> bool:
        """True if the value need not be computed."""
        with self._lock:
            return bool(self._kept)
