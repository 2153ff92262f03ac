"""The same call for many items at once: one slow worker does not make the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Generic, TypeVar

from tpux.errors import TpuxError

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

MOST = 64
"""Threads that all calls share: what they wait for is a worker's answer."""


def fanout(items: Mapping[K, T], call: Callable[[K, T], R], *, limit: int = MOST) -> dict[K, R | TpuxError]:
    """Call for each item, many at once; a `TpuxError` is that item's answer.

    Args:
        items: what to call for.
        call: takes an item's key and the item.
        limit: how many at once at the most.

    Returns:
        The answers in the items' order.

    Raises:
        Exception: what a call raised beside `TpuxError`, the first of it, once all calls have ended.
    """
    calls = _Calls(items, call)
    # The caller takes its share: one item needs no thread, and a fanout inside another one goes on
    # when the pool is busy.
    helpers = [_pool().submit(calls.work) for _ in range(min(limit, len(items)) - 1)]
    try:
        calls.work()
    finally:
        calls.close()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    if calls.broken:
        raise calls.broken[0]
    return {key: calls.answers[key] for key in items}


class _Calls(Generic[K, T, R]):
    """The calls of one fanout, which its threads share out among themselves."""

    def __init__(self, items: Mapping[K, T], call: Callable[[K, T], R]) -> None:
        self.answers: dict[K, R | TpuxError] = {}
        self.broken: list[Exception] = []
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
                self.broken.append(error)

    def close(self) -> None:
        """Begin no more calls: there are none left, or the caller was interrupted."""
        with self._lock:
            self._left = iter(())

    def _take(self) -> tuple[K, T] | None:
        with self._lock:
            return next(self._left, None)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST, thread_name_prefix="fanout")
