"""What the user wants of a job: `wanted.json`, the one file of a job that commands write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from tpux.store import files

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

RequestAction = Literal["stop", "resume", "rerun", "setup", "delete"]


@dataclass(frozen=True)
class UserRequest:
    """One thing that the user wants.

    Attributes:
        serial: its own name; a job's state tells the last one that was heeded.
        options: `release` or `keep` of a stop; of a setup `only` (modules) and `workers`, and `keep`.
    """

    want: RequestAction
    serial: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)


def write(directory: Path, want: RequestAction, **options: JsonValue) -> UserRequest:
    """Write down what is wanted of the job in `directory`; it takes the place of an earlier wish."""
    import uuid

    wish = UserRequest(want, uuid.uuid4().hex, options)
    data: dict[str, JsonValue] = {"want": want, "serial": wish.serial, "options": dict(options)}
    files.write_atomic(directory / "wanted.json", files.dump(data))
    return wish


def read(directory: Path) -> UserRequest | None:
    """What is wanted of the job in `directory`, if anything; a file that holds no wish stands for none."""
    data = files.load(directory / "wanted.json") or {}
    want, serial, options = data.get("want"), data.get("serial"), data.get("options") or {}
    if want not in get_args(RequestAction) or not isinstance(serial, str) or not isinstance(options, dict):
        return None
    return UserRequest(cast("RequestAction", want), serial, options)
