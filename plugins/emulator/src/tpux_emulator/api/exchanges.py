"""What the emulator was asked and what it answered."""

from __future__ import annotations

import json
import logging
from collections import deque

from pydantic import BaseModel, JsonValue

log = logging.getLogger("tpux_emulator.requests")
_KEPT = 20_000
_SHOWN = 2000


class Exchange(BaseModel):
    """One request and its answer.

    Args:
        number: counted from 1 since the emulator started.
        at: emulated Unix seconds.
        method: as `nodes.create`; empty where the API has no such method.
        verb: the HTTP method.
        path: the path, without the query.
        query: the query's parameters.
        body: the body sent, where it was JSON.
        status: the HTTP status; 0 where no answer was sent.
        answer: the JSON answered.
        fault: the standing fault that it ran into, if any.
        agent: the client's User-Agent.
    """

    number: int
    at: float
    method: str
    verb: str
    path: str
    query: dict[str, str]
    body: JsonValue = None
    status: int = 0
    answer: JsonValue = None
    fault: str = ""
    agent: str = ""


class ExchangeLog:
    """The exchanges of this run of the emulator, the last twenty thousand of them."""

    def __init__(self) -> None:
        self._kept: deque[Exchange] = deque(maxlen=_KEPT)
        self._count = 0

    def next_number(self) -> int:
        """The number of the next exchange."""
        self._count += 1
        return self._count

    def add(self, exchange: Exchange) -> None:
        """Keep an exchange and write it to the log."""
        self._kept.append(exchange)
        query = "&".join(f"{key}={value}" for key, value in exchange.query.items())
        where = exchange.path + (f"?{query}" if query else "")
        status = exchange.status or "no answer"
        fault = f" [fault {exchange.fault}]" if exchange.fault else ""
        log.info("%s %s %s%s", status, exchange.verb, where, fault)
        if exchange.body is not None:
            log.info("    asked    %s", _short(exchange.body))
        if exchange.answer is not None:
            log.info("    answered %s", _short(exchange.answer))

    def since(self, number: int) -> list[Exchange]:
        """The exchanges after that number."""
        return [exchange for exchange in self._kept if exchange.number > number]


def _short(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
