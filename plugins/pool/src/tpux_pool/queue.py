"""The jobs that wait for a TPU of the pool, in the order of their requests: `pool/queue/JOB.json`, of each job's user.

A file only says who came first: what keeps two jobs from one TPU is its lease. A job whose supervisor does not run, as
on a laptop that is shut, does not delay the others.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from tpux.api import machines
from tpux_pool.shared import Demand

_DEMAND = TypeAdapter(Demand)
_DIRECTORY = "pool/queue"
FORGOTTEN_AFTER = 300.0
"""Seconds without a look of a job at the pool after which it does not count."""


def enter(demand: Demand) -> None:
    """Note that a job waits, and that it still does.

    Raises:
        OSError: that cannot be written.
    """
    machines.published().write(_name(demand.job), json.dumps(asdict(demand)).encode())


def leave(job: str) -> None:
    """Forget a job that waits no longer.

    Raises:
        OSError: it cannot be removed.
    """
    machines.published().remove(_name(job))


def before(demand: Demand) -> list[Demand]:
    """Return the demands of jobs that came before, the first one first."""
    return [other for other in waiting() if (other.since, other.job) < (demand.since, demand.job)]


def waiting() -> list[Demand]:
    """Return the demands of all jobs that wait, in the order of their requests."""
    found = list[Demand]()
    for file in machines.published().files(_DIRECTORY):
        with suppress(ValueError, RecursionError):  # it is not of this version, or another user has written anything
            demand = _DEMAND.validate_json(file.content)
            if file.name != _name(demand.job) or time.time() - file.changed > FORGOTTEN_AFTER:
                continue
            if demand.job.isdecimal() and machines.is_active(demand.job):
                found.append(demand if file.own else replace(demand, user=file.user))
    return sorted(found, key=lambda one: (one.since, one.job))


def _name(job: str) -> str:
    return f"{_DIRECTORY}/{job}.json"
