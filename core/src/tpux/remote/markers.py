"""The markers of completed set-ups on a worker: which module is ready, and with which config."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tpux.model.sections import Section
from tpux.plugin import spec
from tpux.plugin.manager import Plugins

CHANGED = "its config has changed since it was set up"
IN_PROGRESS = b"being set up\n"
"""The marker while a setup runs: a worker that is half set up is not ready."""


def marker_path(module: str) -> str:
    """Return the path of a module's marker on a worker, relative to its home directory."""
    return f".tpux/ready/{module}"


def fingerprint(section: Section | None) -> bytes:
    """Return the marker of a module's config and of the files that it names; setup is due again when it changes.

    The content of a file counts and not its path: every job has its own copy.
    """
    config = None if section is None else section.model_dump()
    text = json.dumps(config, sort_keys=True, default=_comparable)
    return f"{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def _comparable(value: object) -> str:
    if isinstance(value, Path) and value.is_file():
        return hashlib.sha256(value.read_bytes()).hexdigest()
    return str(value)


def has_check(plugins: Plugins, module: str) -> bool:
    """Return whether something other than the marker can tell that a module is ready: its check, or no setup."""
    return plugins.implements(module, spec.check) or not plugins.implements(module, spec.setup)


def stale_reason(found: bytes | None, wanted: bytes, *, has_check: bool) -> str:
    """Return why the worker's setup marker says that the module is not ready; '' if the module's check decides.

    Args:
        found: the marker on the worker. None if there is none: the worker may have been set up by hand.
        wanted: the marker of the module's config.
        has_check: see the function `has_check`.
    """
    if found is None:
        return "" if has_check else "it was not set up yet"
    if found == wanted:
        return ""
    if found == IN_PROGRESS:
        return "its setup is in progress, or was interrupted"
    return CHANGED
