"""The one stream of a browser: what its pages show, whenever that changes, a line of JSON each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tpux import JsonValue, TpuxError, UsageError
from tpux_web import detail, machines
from tpux_web.curves import Curves
from tpux_web.jobs import EVERY, Jobs
from tpux_web.logs import Follower
from tpux_web.machines import Held

TICK = 0.2
"""Seconds between two looks at the outputs that pages follow."""
BEAT = 15.0
"""Seconds after which an empty line says that the stream is alive."""
MOST_TOPICS = 64
MOST_STREAMS = 16
"""Streams at once; a browser has one for all of its pages."""

Data = dict[str, JsonValue]


class Topic(Protocol):
    """One thing that a page shows."""

    every: float
    due: float

    def read(self) -> Data | None:
        """Return what is new; None if nothing is."""


@dataclass
class Watched:
    """What a function returns, whenever that differs from what it has returned before."""

    get: Callable[[], Data]
    every: float
    due: float = 0.0
    last: str = ""

    def read(self) -> Data | None:
        """Return what the function returns now, unless that is known."""
        try:
            data = self.get()
        except UsageError as error:
            data = {"gone": error.message}
        except Exception as error:  # noqa: BLE001  shown, and one job's files must not end the other topics
            data = {"error": str(error)}
        text = json.dumps(data)
        if text == self.last:
            return None
        self.last = text
        return data


@dataclass
class WatchedJob:
    """A job's page: computed anew only where something was written."""

    job: int
    every: float = 1.0
    due: float = 0.0
    version: JsonValue = None
    inner: Watched = field(init=False)

    def __post_init__(self) -> None:
        self.inner = Watched(lambda: detail.describe(self.job), self.every)

    def read(self) -> Data | None:
        """Return the job, unless nothing has changed."""
        try:
            version = detail.version(self.job)
        except (TpuxError, OSError):
            version = None  # `describe` says why
        if version is not None and version == self.version:
            return None
        self.version = version
        return self.inner.read()


@dataclass
class Output:
    """The output of a program on a worker, followed."""

    follower: Follower
    every: float = TICK
    due: float = 0.0

    def read(self) -> Data | None:
        """Return what was written."""
        return self.follower.read()


class Streams:
    """What all streams share.

    Attributes:
        stopping: set when the server ends: uvicorn would wait for them.
    """

    def __init__(self) -> None:
        self.jobs, self.curves, self.held = Jobs(), Curves(), Held()
        self.stopping = False
        self._open = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return self._open >= MOST_STREAMS

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one until it has ended. Nothing may be awaited between `is_full` and this: others would look, too."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def topic(self, text: str) -> Topic:
        """Return the topic that a page names, such as `jobs/1/state:failed`, `job/14` or `log/14/3/0/1024`.

        Raises:
            ValueError: there is no such topic.
        """
        kind, *parts = text.split("/", 4 if text.startswith("log/") else 2)
        if kind == "jobs" and len(parts) == 2:
            page = _integer(parts[0])
            return Watched(lambda: self.jobs.page(parts[1], page), EVERY)
        if kind == "machines" and not parts:
            return Watched(lambda: self.held.table(self.jobs.active()), EVERY)
        if kind == "queue" and not parts:
            return Watched(lambda: machines.queue(self.jobs.active()), EVERY)
        if kind == "job" and len(parts) == 1:
            return WatchedJob(_integer(parts[0]))
        if kind == "curve" and len(parts) == 2:
            job, attempts = map(_integer, parts)
            return Watched(lambda: self.curves.of(job, attempts), 10.0)
        if kind == "log" and len(parts) == 4:
            offset = -1 if parts[3] == "end" else _integer(parts[3])
            return Output(Follower(_integer(parts[0]), _integer(parts[1]), _integer(parts[2]), offset))
        raise ValueError(f"no such topic: {text!r}")

    async def lines(self, topics: Sequence[Topic], greeting: Data) -> AsyncIterator[bytes]:
        """Yield what is new of each topic, with its number, until the browser or the server ends."""
        yield _line({**greeting, "now": time.time()})
        sent = time.monotonic()
        while not self.stopping:
            for number, topic in enumerate(topics):
                if topic.due > time.monotonic():
                    continue
                topic.due = time.monotonic() + topic.every - TICK / 2
                data = await asyncio.to_thread(topic.read)
                if data is not None:
                    yield _line({"topic": number, "data": data})
                    sent = time.monotonic()
            if time.monotonic() - sent > BEAT:
                yield b"\n"
                sent = time.monotonic()
            await asyncio.sleep(TICK)


def _integer(text: str) -> int:
    """Return a number that a page has sent.

    Raises:
        ValueError: it is none, or too long to be one of ours.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)


def _line(data: Data) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"
