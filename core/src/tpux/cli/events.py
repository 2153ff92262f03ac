"""What happened, in words: for the lines of `tpux run` and the list of `tpux show`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from tpux.plugin.machines import JsonValue
from tpux.store.events import Event


def describe_event(event: Event) -> str:
    """One event as people read it."""
    teller = _TELLERS.get(str(event["type"]))
    return teller(event) if teller else str(event["type"])


def _moved(event: Event) -> str:
    return f"{event['to']}: {event['why']}" if event.get("why") else str(event["to"])


def _allocated(event: Event) -> str:
    allocation = cast("dict[str, JsonValue]", event["allocation"])
    count = len(cast("list[JsonValue]", allocation["workers"]))
    return f"got {allocation['name']}, {count} worker{'s' if count != 1 else ''}"


def _attempt_started(event: Event) -> str:
    how = f"resumed, stage {event['stage']}" if event["resume"] else "from scratch"
    workers = cast("list[int]", event["workers"])
    return f"attempt {event['attempt']} starts {how}, on {len(workers)} worker{'s' if len(workers) != 1 else ''}"


def _worker_ended(event: Event) -> str:
    end = "without a word" if event["code"] is None else f"with exit code {event['code']}"
    return f"worker {event['worker']} ended {end}" + (f": {event['reason']}" if event.get("reason") else "")


def _attempt_ended(event: Event) -> str:
    failure = cast("Mapping[str, JsonValue] | None", event["failure"])
    if failure is None:
        return f"attempt {event['attempt']} " + ("was stopped" if event.get("stopped") else "finished")
    return f"attempt {event['attempt']} ended: {describe_failure(failure)}"


def _keep(event: Event) -> str:
    return "the machines are kept for good" if event["until"] is None else "the machines are to be given back"


def describe_failure(failure: Mapping[str, JsonValue]) -> str:
    """A failure in one line: its kind, its worker, its evidence."""
    where = "" if failure["worker"] is None else f" on worker {failure['worker']}"
    return f"{failure['kind']}{where}: {failure['evidence']}"


_TELLERS: dict[str, Callable[[Event], str]] = {
    "created": lambda event: f"created: {event['name']}",
    "moved": _moved,
    "waiting": lambda event: str(event["why"]),
    "requested": lambda event: f"asks {event['allocator']} for {event['name']}",
    "allocated": _allocated,
    "released": lambda _: "the machines are given back",
    "keep": _keep,
    "attempt-started": _attempt_started,
    "attempt-running": lambda event: f"attempt {event['attempt']} runs on all its workers",
    "worker-ended": _worker_ended,
    "attempt-ended": _attempt_ended,
    "failure": describe_failure,
    "wanted": lambda event: f"the user wants: {event['want']}",
}
