"""Calls of plugins that a job has not chosen: each has a thread of its own, and a limit, so that none holds the job."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tpux import env, threads

T = TypeVar("T")
LIMIT = 30.0
"""Seconds that a call may take."""
LEAST = 5.0
"""Real seconds that it may take in any case: a faster clock does not make a plugin faster."""
MAX_LATE = 3
"""Calls that do not return after which a hook is not called any more, until its job enters another state."""


def call(function: Callable[[], T], limit: float = LIMIT) -> T:
    """Return what a function returns, called in a thread that is abandoned if it does not return in time.

    Args:
        function: the function.
        limit: seconds that it may take.

    Raises:
        TimeoutError: it has not returned.
        NoThreadError: it was not called, since the system has no thread left.
        Exception: what the function raised.
    """
    future, context = Future[T](), contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001  (raised to the caller)
            future.set_exception(error)

    threads.pool().submit(run)
    return future.result(max(limit / env.clock_rate(), LEAST))
