"""The machines that the jobs hold, as `tpux info` has them, and what the jobs wait for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from tpux import JsonValue, TpuxError, api, events
from tpux.api import JobInfo
from tpux.api.text import printable
from tpux_history.prices import PRICES, Prices, price_of, read_prices
from tpux_history.use import MachineType, read_history
from tpux_info.machines import QUEUED, Machines, count, machines_of


class Held:
    """What is held, for the page of machines."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, Mapping[MachineType, float], float]] = {}

    def table(self, jobs: Iterable[JobInfo]) -> dict[str, JsonValue]:
        """Return the machines that jobs hold: by whom, until when, and at what price per hour and so far."""
        jobs = list(jobs)
        prices, note = prices_and_note()
        found = [machines for machines in map(machines_of, jobs) if machines is not None]
        held = [machines for machines in found if machines.state != QUEUED]
        totals = count(jobs, found, prices)
        rows: list[JsonValue] = [self._row(machines, prices) for machines in held]
        self._since = {one.job.id: self._since[one.job.id] for one in held if one.job.id in self._since}
        total: dict[str, JsonValue] = {
            "workers": sum(totals.held.values()),
            "queued": totals.queued,
            "per_hour": None if totals.unpriced else totals.priced,
            "prices": note,
        }
        return {"rows": rows, "total": total}

    def _row(self, machines: Machines, prices: Prices) -> dict[str, JsonValue]:
        job = machines.job
        return {
            "id": int(job.id),
            "name": job.machines or "",
            "job": job.name,
            "user": job.user,
            "type": machines.kind,
            "zone": machines.zone,
            "state": machines.state,
            "workers": machines.workers,
            "since": job.since,
            "release_at": job.release_at,
            "held": bool(job.ended and job.release_at is None),
            "per_hour": machines.price(prices),
            "spent": self._spent(job, prices),
        }

    def _spent(self, job: JobInfo, prices: Prices) -> JsonValue:
        """Return what the machines of a job have cost so far; None if that is unknown."""
        now = time.time()
        updated, seconds, at = self._since.get(job.id, (0.0, {}, 0.0))
        if updated != job.updated_at:
            try:
                history = read_history(api.events(job.id), 0.0, now)
            except TpuxError:
                return None
            seconds, at = history.machine_seconds, now
            self._since[job.id] = (job.updated_at, seconds, at)
        one = machines_of(job)
        per_hour, until_then = one.price(prices) if one else 0.0, cost(seconds, prices)
        if per_hour is None or until_then is None:
            return None
        return round(until_then + per_hour * (now - at) / 3600, 2)


def queue(jobs: Iterable[JobInfo]) -> dict[str, JsonValue]:
    """Return the jobs that wait for machines: what they have asked for, how often, and what the last answer was."""
    rows: list[JsonValue] = []
    for job in jobs:
        if job.ended or job.allocation is not None:
            continue
        try:
            asked = [event.at for event in api.events(job.id) if isinstance(event, events.AllocationRequested)]
        except TpuxError:
            continue
        machines = machines_of(job)
        rows.append(
            {
                "id": int(job.id),
                "job": job.name,
                "state": job.state,
                "type": machines.kind if machines else job.accelerator or "",
                "zone": job.zone or "",
                "since": asked[-1] if asked else None,
                "tries": len(asked),
                "answer": printable(job.why),
                "hint": printable(job.hint),
            }
        )
    return {"rows": rows}


def cost(seconds: Mapping[MachineType, float], prices: Prices) -> float | None:
    """Return what machines have cost that were held for some time, by type; None if a price is unknown."""
    total = 0.0
    for kind, took in seconds.items():
        if (price := price_of(kind, took / 3600, prices)) is None:
            return None
        total += price
    return total


def prices_and_note() -> tuple[Prices, str]:
    """Return the prices per hour, and which table that is, with its date."""
    path = api.home() / PRICES
    try:
        prices = read_prices()
        date = time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime)) if prices else ""
    except (TpuxError, OSError) as error:
        return {}, str(error)
    return prices, f"{path}, of {date}" if prices else f"no prices: there is no {path}"
