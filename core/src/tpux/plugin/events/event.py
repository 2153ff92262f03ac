"""What all events have in common, and the table of their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from tpux.plugin import dataclass_json
from tpux.plugin.machines import JsonValue

EVENT_TYPES: dict[str, type[Event]] = {}
"""The classes of this package by their `type`."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened to a job, or that is about to: an intent is written before the action.

    Attributes:
        type: the name of the event type.
        version: the format of this type; raised when an older tpux would misread it.
        at: when it was written, in seconds since the epoch; `Record.write` fills it in.
    """

    type: ClassVar[str] = ""
    version: ClassVar[int] = 1
    at: float = 0.0

    def __init_subclass__(cls) -> None:
        if cls.type:
            EVENT_TYPES[cls.type] = cls

    def to_json(self) -> dict[str, JsonValue]:
        """Return the event as a line of `events.jsonl` holds it.

        Fields that have their default are in it too: the next version may have another default.
        """
        facts = {field.name: dataclass_json.dump(getattr(self, field.name)) for field in fields(self)}
        return {"type": self.type, "version": self.version, **facts}


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a type that this version does not know; it changes nothing.

    Attributes:
        facts: the event as it was read.
    """

    facts: Mapping[str, JsonValue]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the event as it was read."""
        return dict(self.facts)
