"""Read what core has stored of hook calls: the trace of a job, and the last failure of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tpux.model.json import JsonValue
from tpux.store import Store
from tpux.store.files import JsonFile
from tpux.store.hooks import TRACE, LastFailure, failures_dir


def last_failure(store: Store, plugin: str) -> LastFailure | None:
    """Return the last failure of a plugin's hook."""
    return JsonFile(failures_dir(store) / f"{plugin}.json", LastFailure).load()


def read_trace(job: Path) -> list[Mapping[str, JsonValue]] | None:
    """Return the hook calls in a job's trace, in the order in which they ended; None if the job is not traced.

    Args:
        job: its directory.
    """
    try:
        lines = (job / TRACE).read_bytes().splitlines()
    except FileNotFoundError:
        return None
    return [call for line in lines if (call := _parse(line))]


def _parse(line: bytes) -> Mapping[str, JsonValue]:
    try:
        data = json.loads(line)
    except ValueError:  # torn by a crash
        return {}
    return cast("Mapping[str, JsonValue]", data) if isinstance(data, dict) else {}
