"""Which plugins' code runs now on behalf of a job, so that a call that does not return can be named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

IMPORT = "its import"
"""In place of a hook's name: the import of a plugin, or a wait for another thread that imports it."""
VALIDATION = "the validation of its section"
"""In place of a hook's name: the model of a plugin's section is called."""


@dataclass(frozen=True)
class RunningCall:
    """A call of a plugin's code that has not returned.

    Attributes:
        plugin: the plugin with its dist, for people.
        hook: the hook's name, `IMPORT` or `VALIDATION`.
        name: the plugin's name.
    """

    plugin: str
    hook: str
    name: str

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
def running(plugin: str, hook: str, name: str) -> Iterator[None]:
    """Mark a call of a plugin's code as running; the arguments are those of `RunningCall`."""
    calls, key = _current.get(), object()
    if calls is None:
        yield
        return
    calls[key] = RunningCall(plugin, hook, name)
    try:
        yield
    finally:
        del calls[key]
