"""The record of API requests and their answers."""

from __future__ import annotations

import json
import logging
from collections import deque

from pydantic import BaseModel, JsonValue

log = logging.getLogger("tpux_emulator.requests")
_MAX_KEPT = 20_000
_MAX_LOGGED = 2000  # characters of a body


class Exchange(BaseModel):
    """One request and its answer.

    Args:
        number: its number, from 1 since the emulator started.
        at: emulated Unix seconds.
        method: the API method, such as `nodes.create`; empty if there is no such method.
        verb: the HTTP method.
        path: the path, without the query.
        query: the query's parameters.
        body: the request's body.
        status: the HTTP status; 0 if no answer was sent.
        answer: the answer's body.
        fault: the id of the fault rule that applied, if any.
        agent: the client's User-Agent.
        account: the service account whose token it had; empty for any other token, or none.
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
    account: str = ""


class ExchangeLog:
    """The last 20,000 exchanges since the emulator started."""

    def __init__(self) -> None:
        self._kept: deque[Exchange] = deque(maxlen=_MAX_KEPT)
        self._count = 0

    def next_number(self) -> int:
        """Return the number of the next exchange."""
        self._count += 1
        return self._count

    def add(self, exchange: Exchange) -> None:
        """Add an exchange and write it to the log."""
        self._kept.append(exchange)
        query = "&".join(f"{key}={value}" for key, value in exchange.query.items())
        where = exchange.path + (f"?{query}" if query else "")
        status = exchange.status or "no answer"
        fault = f" [fault {exchange.fault}]" if exchange.fault else ""
        log.info("%s %s %s%s", status, exchange.verb, where, fault)
        if exchange.body is not None:
            log.info("    request  %s", _short(exchange.body))
        if exchange.answer is not None:
            log.info("    answer   %s", _short(exchange.answer))

    def since(self, number: int) -> list[Exchange]:
        """Return the exchanges after a number."""
        return [exchange for exchange in self._kept if exchange.number > number]


def _short(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_LOGGED else f"{text[:_MAX_LOGGED]}... ({len(text)} characters)"
