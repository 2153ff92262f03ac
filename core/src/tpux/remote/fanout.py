"""Call a function for many items in parallel, so that one slow worker does not delay the others."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from tpux import threads
from tpux.errors import TpuxError

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

MAX_THREADS = 64
"""Threads that all fan-outs share; they spend their time waiting for workers."""


def fanout(items: Mapping[K, T], call: Callable[[K, T], R], *, limit: int = MAX_THREADS) -> dict[K, R | TpuxError]:
    """Call `call` for each item, several at once.

    Args:
        items: the items.
        call: takes an item's key and the item.
        limit: the maximum number of parallel calls.

    Returns:
        The result of each item, or the `TpuxError` that its call raised, in the order of the items.

    Raises:
        Exception: the first exception of a call other than `TpuxError`, once all calls have ended.
    """
    calls = _Calls(items, call)
    # The calling thread also processes items, so a single item needs no thread and nested fan-outs cannot deadlock
    # on a full pool.
    pool, helpers = threads.pool("fanout", MAX_THREADS), list[threads.Task]()
    with suppress(threads.NoThreadError, MemoryError):  # then it takes longer
        for _ in range(min(limit, len(items)) - 1):
            helpers.append(pool.submit(partial(contextvars.copy_context().run, calls.help)))
    try:
        calls.work()
    finally:
        calls.close()
    for helper in helpers:
        if not pool.cancel(helper):
            helper.wait()
    if calls.errors:
        raise calls.errors[0]
    return {key: calls.answers[key] for key in items}


class _Calls(Generic[K, T, R]):
    """The calls of one fan-out, which its threads take from a shared iterator."""

    def __init__(self, items: Mapping[K, T], call: Callable[[K, T], R]) -> None:
        self.answers: dict[K, R | TpuxError] = {}
        self.errors: list[BaseException] = []
        self._call = call
        self._left: Iterator[tuple[K, T]] = iter(items.items())
        self._lock = threading.Lock()

    def work(self) -> None:
        """Make calls until none is left."""
        while (item := self._take()) is not None:
            key, value = item
            try:
                self.answers[key] = self._call(key, value)
            except TpuxError as error:
                self.answers[key] = error
            except Exception as error:  # noqa: BLE001  (raised by `fanout` when the others have ended)
                self.errors.append(error)

    def help(self) -> None:
        """Make calls in another thread than the caller's."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  (raised by `fanout`)
            self.errors.append(error)

    def close(self) -> None:
        """Start no more calls: none is left, or the caller was interrupted."""
        with self._lock:
            self._left = iter(())

    def _take(self) -> tuple[K, T] | None:
        with self._lock:
            return next(self._left, None)
