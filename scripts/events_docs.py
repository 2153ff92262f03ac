"""Print docs/events.md, generated from the dataclasses in `tpux.model.events`; `make docs` writes the file."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import MISSING, fields
from typing import get_args

from tpux.model import events, states
from tpux.model.failures import FAILURE_KINDS, Failure
from tpux.model.machines import Allocation, Worker
from tpux.model.progress import Progress

INTRODUCTION = """\
# Events

Generated from `tpux/model/events.py` by `make docs`.

Each event of a job is appended to `events.jsonl` in its directory, one JSON object per line; `tpux show JOB --json`
prints them, with times as ISO 8601. A job's state is computed from its events alone. Plugins receive each event in
`on_event`, as an object of the class named here (`from tpux import events`).

Each event has a `type`, the `version` of that type's format, `at`, the time when it was written, in seconds since the
epoch, and the job's `attempt` (0 before the first) and `stage` (how many times it was resumed since it last started
from scratch), both as they are after the event. Later versions of tpux may add fields and types: ignore those that you
do not know. A `version` higher than documented here means that the meaning of the type's fields has changed. All fields
are written, also those with their default, which a later version may change; a field that an older version did not have
has its default.
"""

CHOICES = {
    "state": get_args(states.JobState),
    "action": get_args(states.RequestAction),
    "failure kind": FAILURE_KINDS,
}
TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "None": "null",
    "JobState": "state",
    "RequestAction": "action",
    "FailureKind": "failure kind",
    "Failure": "failure",
    "Progress": "progress",
    "Allocation": "allocation",
    "Worker": "worker",
    "Mapping[str, JsonValue]": "object",
    "Mapping[str, str]": "object",
    "tuple[Mapping[str, str], ...]": "list of objects",
    "tuple[int, ...]": "list of integers",
    "tuple[str, ...]": "list of strings",
    "tuple[Worker, ...]": "list of workers",
}


def main() -> None:
    """Print the page."""
    values = "\n".join(f"- {name}: {', '.join(f'`{value}`' for value in values)}" for name, values in CHOICES.items())
    parts = [
        INTRODUCTION.rstrip(),
        *(section(event.type, event) for event in events.EVENT_TYPES.values()),
        f"## Values\n\n{values}",
        *(section(model.__name__.lower(), model) for model in (Failure, Progress, Allocation, Worker)),
    ]
    sys.stdout.write("\n\n".join(parts) + "\n")


def section(title: str, model: type) -> str:
    """Return the section about an event type, or another dataclass."""
    head, _, attributes = (inspect.getdoc(model) or "").partition("\n\nAttributes:\n")
    described = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {6,}.*)*)", attributes, re.MULTILINE))
    version = f"`events.{model.__name__}`, version {model.version}. " if issubclass(model, events.Event) else ""
    lines = [f"## {title}", "", version + head, ""]
    own = [field for field in fields(model) if not version or field.name in model.__annotations__]
    if own:
        lines += ["| field | type | default | |", "|---|---|---|---|"]
    for field in own:
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        shown = "" if default is MISSING else f"`{json.dumps(default)}`"
        sentence = " ".join(described.get(field.name, "").split()).rstrip(".")
        lines.append(f"| `{field.name}` | {type_name(str(field.type))} | {shown} | {sentence} |")
    return "\n".join(lines).rstrip()


def type_name(annotation: str) -> str:
    """Return the JSON type of a field."""
    parts = []
    for part in annotation.split(" | "):
        if part.startswith("Literal["):
            parts += [f"`{value}`" for value in re.findall(r'"([^"]*)"|\'([^\']*)\'', part) for value in value if value]
        else:
            parts.append(TYPES[part])
    return " or ".join(parts)


if __name__ == "__main__":
    main()
