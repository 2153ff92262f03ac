"""The jobs that wait for a TPU of the pool: `pool/queue/JOB.json` in the store, in the order of their requests.

A file only says who came first: what keeps two jobs from one TPU is its lease. A job whose supervisor does not run, as
on a laptop that is shut, does not delay the others.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from tpux import api
from tpux.api import machines
from tpux_pool.shared import Wish

_WISH = TypeAdapter(Wish)
FORGOTTEN_AFTER = 300.0
"""Seconds without a look of a job at the pool after which it does not count."""


def enter(wish: Wish) -> None:
    """Note that a job waits, and that it still does.

    Raises:
        OSError: that cannot be written.
    """
    path = _path(wish.job)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(asdict(wish)))
    new.replace(path)


def leave(job: str) -> None:
    """Forget a job that waits no longer.

    Raises:
        OSError: it cannot be removed.
    """
    _path(job).unlink(missing_ok=True)


def before(wish: Wish) -> list[Wish]:
    """Return what the jobs wish that came before, the first one first."""
    return [other for other in waiting() if (other.since, other.job) < (wish.since, wish.job)]


def waiting() -> list[Wish]:
    """Return what all jobs wish that wait, in the order of their requests."""
    found = list[Wish]()
    for path in _path("x").parent.glob("*.json"):
        with suppress(OSError, ValueError, TypeError):  # it was removed, or is not of this version
            if time.time() - path.stat().st_mtime <= FORGOTTEN_AFTER and machines.is_active(path.stem):
                found.append(_WISH.validate_json(path.read_bytes()))
    return sorted(found, key=lambda one: (one.since, one.job))


def _path(job: str) -> Path:
    return api.home() / "pool" / "queue" / f"{job}.json"
