"""Which machines the jobs hold and wait for, and what those cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux.api.text import iso
from tpux_history.prices import Prices, price_of
from tpux_history.use import MachineType

if TYPE_CHECKING:
    from tpux import JsonValue
    from tpux.api import JobInfo

IDLE = "idle"
"""The state of machines that a job holds after its end."""
QUEUED = "queued"
"""The state of machines that a job has asked for and does not hold yet."""
ORDER = ("running", "setting-up", "recovering", "pending", "stopping", IDLE, QUEUED)


@dataclass(frozen=True)
class Machines:
    """The machines that one job holds or waits for.

    Attributes:
        job: the job.
        accelerator: their type, else the allocation mode of machines that have none.
        pricing: spot, preemptible, ondemand, or "" if that is unknown.
        zone: where they are or are asked for, "" if they have no zone.
        state: that of the job, but `idle` after its end, and `queued` before they are there.
        slices: the number of slices.
        workers: the number of workers, 0 if that is unknown.
        costs: whether they cost money now.
    """

    job: JobInfo
    accelerator: str
    pricing: str
    zone: str
    state: str
    slices: int
    workers: int
    costs: bool

    @property
    def kind(self) -> str:
        """The type as people write it: v4-32, or v4-32 spot."""
        return self.accelerator if self.pricing in {"", "ondemand"} else f"{self.accelerator} {self.pricing}"

    def price(self, prices: Prices) -> float | None:
        """Return what they cost per hour now; None if that is unknown."""
        if not self.costs:
            return 0.0
        return price_of(MachineType(self.accelerator, self.pricing, self.zone), self.slices, prices)

    def to_json(self, prices: Prices) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        job = self.job
        return {
            "accelerator": self.accelerator,
            "pricing": self.pricing,
            "zone": self.zone,
            "state": self.state,
            "slices": self.slices,
            "workers": self.workers,
            "name": job.machines,
            "job": {"id": job.id, "name": job.name, "user": job.user, "state": job.state, "why": job.why},
            "since": iso(job.since),
            "release_at": None if job.release_at is None else iso(job.release_at),
            "price_per_hour": self.price(prices),
        }


@dataclass(frozen=True)
class Totals:
    """What all jobs hold and wait for.

    Attributes:
        held: workers held, by state.
        holders: the number of jobs that hold them.
        queued: the number of jobs that wait for machines.
        pending: the number of jobs that have not asked for machines yet.
        priced: what the machines with a known price cost per hour.
        unpriced: the types of the others.
    """

    held: Mapping[str, int]
    holders: int
    queued: int
    pending: int
    priced: float
    unpriced: Sequence[str]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return {
            "workers": {**self.held},
            "holding_jobs": self.holders,
            "queued_jobs": self.queued,
            "pending_jobs": self.pending,
            "price_per_hour": None if self.unpriced else self.priced,
            "without_price": [*self.unpriced],
        }


def machines_of(job: JobInfo) -> Machines | None:
    """Return the machines that a job holds or waits for; None if it does neither."""
    held = job.allocation
    if held is not None:
        return Machines(
            job,
            held.accelerator or job.accelerator or held.transport,
            held.pricing,
            held.zone or job.zone or "",
            IDLE if job.ended else job.state,
            held.slices,
            len(held.workers),
            held.costs,
        )
    if job.ended or job.state == "pending":
        return None
    tpu = _tpu_section(job)
    slices, pricing = tpu.get("node_count"), tpu.get("pricing")
    return Machines(
        job,
        job.accelerator or str(tpu.get("allocation_mode") or "local"),
        pricing if isinstance(pricing, str) else "",
        job.zone or "",
        QUEUED,
        slices if isinstance(slices, int) else 1,
        job.workers,
        costs=False,
    )


def group(found: Iterable[Machines]) -> list[list[Machines]]:
    """Return the machines that a line of the table shows together, in the order of the lines.

    Those of a type, a zone, a state and a user are; idle ones only if they are released at the same time.
    """
    groups: dict[tuple[str, str, int, str, float], list[Machines]] = {}
    for one in found:
        until = one.job.release_at if one.state == IDLE else None
        key = (one.kind, one.zone, ORDER.index(one.state), one.job.user, float("inf") if until is None else until)
        groups.setdefault(key, []).append(one)
    return [groups[key] for key in sorted(groups)]


def count(jobs: Iterable[JobInfo], found: Iterable[Machines], prices: Prices) -> Totals:
    """Return what all jobs hold and wait for."""
    held: dict[str, int] = {}
    unpriced: dict[str, None] = {}
    holders, queued, priced = 0, 0, 0.0
    for one in sorted(found, key=lambda one: ORDER.index(one.state)):
        if one.state == QUEUED:
            queued += 1
            continue
        holders += 1
        held[one.state] = held.get(one.state, 0) + one.workers
        if (price := one.price(prices)) is None:
            unpriced[one.kind] = None
        else:
            priced += price
    pending = sum(job.state == "pending" and job.allocation is None for job in jobs)
    return Totals(held, holders, queued, pending, priced, [*unpriced])


def _tpu_section(job: JobInfo) -> Mapping[str, JsonValue]:
    """Return the section `tpu` of a job's config; an empty one if it cannot be read, such as another user's."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        section = json.loads((job.config_directory / "resolved.json").read_text())["config"]["tpu"]
        return section if isinstance(section, dict) else {}
    return {}
