"""What a user requests of a job: `request.json`, the one file of a job that commands write."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tpux.store import files

if TYPE_CHECKING:
    from tpux.plugin.events import RequestAccepted, RequestAction
    from tpux.plugin.machines import JsonValue

FILE = "request.json"
STOPPED = "stopped by user"
"""The `why` of a job that was stopped and whose programs have ended."""


def write(directory: Path, action: RequestAction, **options: JsonValue) -> str:
    """Write a request into a job's directory. It replaces an earlier one that has not taken effect yet.

    Args:
        directory: the job's directory.
        action: what is requested.
        options: the options of the action, the fields of `tpux.plugin.events.RequestAccepted`.

    Returns:
        The request's id: `State.last_request_id` once it has taken effect.

    Raises:
        OSError: it could not be written.
    """
    import uuid

    request_id = uuid.uuid4().hex
    data: dict[str, JsonValue] = {"action": action, "id": request_id, "options": dict(options)}
    files.write_atomic(directory / FILE, files.dump(data))
    return request_id


def read(directory: Path) -> RequestAccepted | None:
    """Return the request in a job's directory, as the event that is written once it has taken effect.

    Returns:
        None if there is none, or the file does not hold a valid one.
    """
    if (data := files.load(directory / FILE)) is None:
        return None
    from tpux.plugin import dataclass_json, events

    options = data.get("options")
    options = options if isinstance(options, dict) else {}
    known = {field.name for field in fields(events.RequestAccepted)}
    if data.get("action") not in get_args(events.RequestAction) or not options.keys() <= known:
        return None  # a newer tpux requests something that this one does not know
    try:
        return dataclass_json.build(events.RequestAccepted, {**options, "action": data["action"], "id": data.get("id")})
    except ValueError:
        return None
