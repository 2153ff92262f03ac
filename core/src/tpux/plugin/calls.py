"""Which plugins' code runs now on behalf of a job, so that a call that does not return can be named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class RunningCall:
    """A call of a plugin's code that has not returned.

    Attributes:
        plugin: the plugin with its dist, for people.
        hook: the hook's name.
    """

    plugin: str
    hook: str

    def __str__(self) -> str:
        return f"{self.plugin} has not returned from {self.hook}"


RunningCalls = dict[object, RunningCall]
"""The calls that have not returned yet, oldest first."""

_current: ContextVar[RunningCalls | None] = ContextVar("running_calls", default=None)


@contextmanager
def tracked(calls: RunningCalls) -> Iterator[None]:
    """Enter every call of a plugin's code into `calls` while it runs.

    Threads that are started meanwhile take part if they run in a copy of this context (`contextvars.copy_context`).
    """
    token = _current.set(calls)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def running(plugin: str, hook: str) -> Iterator[None]:
    """Mark a call of a plugin's code as running.

    Args:
        plugin: the plugin with its dist, for people.
        hook: the hook's name.
    """
    calls, key = _current.get(), object()
    if calls is None:
        yield
        return
    calls[key] = RunningCall(plugin, hook)
    try:
        yield
    finally:
        del calls[key]
