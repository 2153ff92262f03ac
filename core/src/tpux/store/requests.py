"""What a user requests of a job: `request.json`, the one file of a job that commands write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux.store import files

if TYPE_CHECKING:
    from tpux.plugin.events import RequestAction
    from tpux.plugin.machines import JsonValue

FILE = "request.json"


@dataclass(frozen=True)
class UserRequest:
    """A user's request.

    Attributes:
        action: what is requested.
        id: random; `State.last_request_id` is that of the last request that has taken effect.
        options: the options of the action, the fields of `tpux.plugin.events.RequestAccepted`.
    """

    action: RequestAction
    id: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)


def write(directory: Path, action: RequestAction, **options: JsonValue) -> UserRequest:
    """Write a request into a job's directory. It replaces an earlier one that has not taken effect yet.

    Raises:
        OSError: it could not be written.
    """
    import uuid

    request = UserRequest(action, uuid.uuid4().hex, options)
    data: dict[str, JsonValue] = {"action": action, "id": request.id, "options": dict(options)}
    files.write_atomic(directory / FILE, files.dump(data))
    return request


def read(directory: Path) -> UserRequest | None:
    """Return the request in a job's directory; None if there is none, or the file does not hold a valid one."""
    if (data := files.load(directory / FILE)) is None:
        return None
    from tpux.plugin import events

    options = data.get("options")
    options = options if isinstance(options, dict) else {}
    accepted: dict[str, JsonValue] = {
        **options,
        "type": events.RequestAccepted.type,
        "at": 0.0,
        "action": data.get("action"),
        "id": data.get("id"),
    }
    try:
        event = cast("events.RequestAccepted", events.from_json(accepted, strict=True))
    except ValueError:
        return None
    return UserRequest(event.action, event.id, options)
