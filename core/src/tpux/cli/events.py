"""Events as text: the lines of `tpux run` and the list of `tpux show`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from tpux.plugin.machines import JsonValue
from tpux.store.events import Event


def describe_event(event: Event) -> str:
    """Return one event as a line of text."""
    describe = _DESCRIPTIONS.get(str(event["type"]))
    return describe(event) if describe else str(event["type"])


def _moved(event: Event) -> str:
    return f"{event['to']}: {event['why']}" if event.get("why") else str(event["to"])


def _allocated(event: Event) -> str:
    allocation = cast("dict[str, JsonValue]", event["allocation"])
    count = len(cast("list[JsonValue]", allocation["workers"]))
    return f"machines ready: {allocation['name']}, {_workers(count)}"


def _attempt_started(event: Event) -> str:
    how = f"resuming (stage {event['stage']})" if event["resume"] else "from scratch"
    workers = cast("list[int]", event["workers"])
    return f"starting attempt {event['attempt']} on {_workers(len(workers))}, {how}"


def _worker_ended(event: Event) -> str:
    code = "exit code unknown" if event["code"] is None else f"exit code {event['code']}"
    return f"worker {event['worker']} ended, {code}" + (f": {event['reason']}" if event.get("reason") else "")


def _attempt_ended(event: Event) -> str:
    failure = cast("Mapping[str, JsonValue] | None", event["failure"])
    if failure is None:
        return f"attempt {event['attempt']} " + ("stopped" if event.get("stopped") else "finished")
    return f"attempt {event['attempt']} ended: {describe_failure(failure)}"


def _keep(event: Event) -> str:
    return "machines kept until released by hand" if event["until"] is None else "release of the machines requested"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def describe_failure(failure: Mapping[str, JsonValue]) -> str:
    """Return a failure as one line: its kind, its worker, its evidence."""
    where = "" if failure["worker"] is None else f" on worker {failure['worker']}"
    return f"{failure['kind']}{where}: {failure['evidence']}"


_DESCRIPTIONS: dict[str, Callable[[Event], str]] = {
    "created": lambda event: f"created: {event['name']}",
    "moved": _moved,
    "waiting": lambda event: str(event["why"]),
    "requested": lambda event: f"requesting {event['name']} from {event['allocator']}",
    "allocated": _allocated,
    "released": lambda _: "machines released",
    "keep": _keep,
    "attempt-started": _attempt_started,
    "attempt-running": lambda event: f"attempt {event['attempt']} running on all its workers",
    "worker-ended": _worker_ended,
    "attempt-ended": _attempt_ended,
    "failure": describe_failure,
    "wanted": lambda event: f"{event['want']} requested",
}
