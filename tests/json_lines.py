"""A file of JSON lines in which long runs keep what they have done: a writer may be killed at any moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def read(path: Path) -> list[dict[str, object]]:
    """Return the objects of a file, without the lines that were cut off."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def append(path: Path, one: Mapping[str, object]) -> None:
    """Append an object on a line of its own, also after a line that was cut off."""
    with path.open("ab+", buffering=0) as file:
        torn = False
        if file.seek(0, 2):
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
        file.write(b"\n" * torn + json.dumps(one).encode() + b"\n")
