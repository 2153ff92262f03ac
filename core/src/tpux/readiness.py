"""Whether a module has prepared a worker: the mark that its set-up leaves there, and what its check said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tpux.sections import Section
from tpux.steps import Put, Result, Step

BEING_SET_UP = b"being set up\n"
"""The mark while a set-up is under way: a worker that is half prepared is not ready."""


def mark_path(word: str) -> str:
    """Where a module's mark is, from the worker's home."""
    return f".tpux/ready/{word}"


def fingerprint(section: Section | None) -> bytes:
    """The mark of a module's config and of the files that it names: when it changes, the set-up is due again.

    Of a file its content counts and not its place: every job has a copy of its own.
    """
    config = None if section is None else section.model_dump()
    told = json.dumps(config, sort_keys=True, default=_told)
    return f"{hashlib.sha256(told.encode()).hexdigest()}\n".encode()


def objection(found: bytes | None, wanted: bytes) -> str:
    """What the mark on a worker says against it, nothing where it says nothing.

    Args:
        found: the mark there. None where there is none: somebody else may have prepared it, the check decides.
        wanted: the mark of the module's config.
    """
    if found is None or found == wanted:
        return ""
    if found == BEING_SET_UP:
        return "it is being set up, or that was broken off"
    return "its config has changed since it was set up"


def ended_badly(step: Step, result: Result) -> str:
    """How a step failed, in one line."""
    what = f"put {step.remote}" if isinstance(step, Put) else step.script.strip().splitlines()[0]
    last = result.text.splitlines()[-1:] or ["no output"]
    return f"`{what.removeprefix('# ')}` exited with {result.code}: {last[0]}"


def _told(value: object) -> str:
    if isinstance(value, Path) and value.is_file():
        return hashlib.sha256(value.read_bytes()).hexdigest()
    return str(value)
