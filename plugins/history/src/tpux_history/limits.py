"""Plugin `limits`: machine hours and cost of a job, and of its user in a month; what is spent ends the job.

A job is examined at each of its events, every minute and, while its program runs, every `watch.resources_every`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tpux import Attempt, Finding, Job, Result, Section, Step, TpuxError, Worker, api, events, hookimpl
from tpux.fields import Duration
from tpux_history.ledger import own_user, read_ledger
from tpux_history.prices import price_of, read_prices
from tpux_history.use import MachineType, read_history

WARN_AT = 0.8
REREAD_AFTER = 60.0
"""Real seconds for which the sum of a month is kept, at most: all jobs of a supervisor ask for it."""
Hours = Annotated[float, Field(gt=0)]
Cost = Annotated[float, Field(gt=0)]
Seconds = Mapping[MachineType, float]


class MonthSection(Section):
    """What all jobs of a user may use in a calendar month, together."""

    hours: Hours | None = None
    """Machine hours."""
    cost: Cost | None = None
    """Their price, by prices.yaml."""


class LimitsSection(Section):
    """What a job may use: it warns at 80 %, and at 100 % the program gets SIGTERM and the machines are released."""

    hours: Hours | None = None
    """Machine hours of the job, those in which its machines are idle included."""
    cost: Cost | None = None
    """Their price, by prices.yaml in the directory of the store, which must have one for the type of machines."""
    month: MonthSection = MonthSection()
    """What all jobs of the user may use in a calendar month, together; those that wait for machines wait on then."""
    grace: Duration = 600.0
    """How long the program may take to save its state after SIGTERM, if that is more than command.grace_period."""

    def ticks(self) -> bool:
        """Return whether there is a limit: a set-up may take hours without an event."""
        return self.hours is not None or self.cost is not None or self.month != MonthSection()


@dataclass(frozen=True)
class Limit:
    """One limit, and what is used of it.

    Attributes:
        key: its key in the config.
        used: machine hours, or their price.
        most: the limit.
        unit: " machine hours", or "" for a price.
    """

    key: str
    used: float
    most: float
    unit: str

    @property
    def text(self) -> str:
        """What is used, for people."""
        return f"{self.key}: {self.used:.2f} of {self.most:g}{self.unit} used"


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `limits`."""
    return LimitsSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Refuse a limit of the cost of machines that have no price."""
    config = job.sections.get("limits")
    if not isinstance(config, LimitsSection) or (config.cost is None and config.month.cost is None):
        return []
    accelerator, prices = job.tpu.accelerator, read_prices()
    zones = getattr(job.tpu, "zone", None)
    found = []
    for name in [accelerator] if isinstance(accelerator, str) else accelerator or []:
        for zone in [zones or ""] if not isinstance(zones, list) else zones:
            kind = MachineType(name, job.tpu.pricing, zone)
            if price_of(kind, 1, prices) is None:
                where = f" in {zone}" if zone else ""
                hint = f"add a line to {api.home() / 'prices.yaml'}: '{kind}: PRICE PER HOUR'"
                found.append(Finding("error", f"no price is known of {kind}{where}", _cost_key(config), hint))
    return found


@hookimpl
def monitor(
    job: Job, config: LimitsSection | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, list[Finding]] | None:
    """Warn of what is used at 80 %, and stop the job at 100 %."""
    if config is None or worker.index != min(ending.worker for ending in attempt.endings):
        return None
    return _examine(job, config)


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Stop a job that has reached a limit and does not run its program, such as one that is set up again and again."""
    config = job.sections.get("limits")
    if isinstance(config, LimitsSection) and not isinstance(event, (events.RequestAccepted, events.Warned)):
        with suppress(TpuxError):  # the record has gone, or prices.yaml has a mistake, which the monitor says
            enforce(job, config, max(time.time(), event.at))


def _examine(job: Job, config: LimitsSection) -> Generator[Step, Result, list[Finding]]:
    yield from ()
    found, unpriced = enforce(job, config, time.time())
    findings = [Finding("warning", one.text, where=one.key) for one in found if one.used >= WARN_AT * one.most]
    if unpriced:
        message = f"{_cost_key(config)} does not count {', '.join(unpriced)}: prices.yaml has no price"
        findings.append(Finding("warning", message, where="limits"))
    return findings or [Finding("ok", "; ".join(one.text for one in found), where="limits")]


def enforce(job: Job, config: LimitsSection, now: float) -> tuple[list[Limit], list[str]]:
    """Stop a job that has reached a limit, and let the user's other jobs wait if it is that of a month.

    Returns:
        The limits, and the types of machines whose price is not known.
    """
    own, month = (
        _used(job.id, now),
        _used_in_month(now, job.watch.resources_every) if config.month != MonthSection() else {},
    )
    prices = read_prices() if config.cost or config.month.cost else {}
    of_job = _compare("limits", config.hours, config.cost, own, prices)
    of_month = _compare_month(config.month, month, prices)
    spent = [one for one in of_month if one.used >= one.most]
    if of_month:
        _pause(job.id, config.month, month, _next_month(now))
    spent += [one for one in of_job if one.used >= one.most]
    state = api.job(job.id)
    kept = state.release_at is None or state.release_at > now
    if spent and state.allocation is not None and state.state != "stopping" and kept:
        with suppress(TimeoutError):  # the request is written; the supervisor, perhaps this process, carries it out
            api.stop(job.id, release=True, grace=config.grace, reason=f"stopped by {spent[0].text}", timeout=0)
    missing = [str(kind) for kind in {**own, **month} if prices and price_of(kind, 1, prices) is None]
    return [*of_job, *of_month], [*dict.fromkeys(missing)]


def _pause(examined: str, own: MonthSection, month: Seconds, until: float) -> None:
    """Let the user's pending jobs wait while the month of any that is not done is spent, but those with more of it.

    All jobs that are not done count, whichever is examined, and that one itself: its end does not end the pause.
    """
    active = [one for one in api.jobs(warn=lambda _: None) if not one.done]
    configs = {one.id: _month_of(one.config_directory / "resolved.json") for one in active}
    configs[examined] = own
    prices = read_prices() if any(config.cost for config in configs.values()) else {}
    why, exempt = "", []
    for job, config in configs.items():
        limits = _compare_month(config, month, prices)
        spent = [one for one in limits if one.used >= one.most]
        why = why or (f"waits for the next month: {spent[0].text}" if spent else "")
        exempt += [job] if limits and not spent else []
    api.supervisor.pause(why, until, exempt)


def _month_of(path: Path) -> MonthSection:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # whatever else reads the job reports that
        return MonthSection.model_validate(json.loads(path.read_text())["config"]["limits"]["month"])
    return MonthSection()


def _compare_month(config: MonthSection, used: Seconds, prices: Mapping[str, float]) -> list[Limit]:
    return _compare("limits.month", config.hours, config.cost, used, prices)


def _compare(
    where: str, hours: float | None, cost: float | None, used: Seconds, prices: Mapping[str, float]
) -> list[Limit]:
    found = []
    if hours is not None:
        found.append(Limit(f"{where}.hours", sum(used.values()) / 3600, hours, " machine hours"))
    if cost is not None:
        spent = sum(price_of(kind, seconds / 3600, prices) or 0.0 for kind, seconds in used.items())
        found.append(Limit(f"{where}.cost", spent, cost, ""))
    return found


def _used(job: str, now: float, since: float = 0.0) -> Seconds:
    return read_history(api.events(job), since, now).machine_seconds


_lock = threading.Lock()
_read: dict[str, tuple[float, Seconds]] = {}
"""What was used in this month when it was last read, and when, by the monotonic clock; by the user and the store."""


def _used_in_month(now: float, reread_after: float) -> Seconds:
    key = f"{api.home()} {own_user()}"
    with _lock:
        if (found := _read.get(key)) is None or time.monotonic() - found[0] > min(reread_after, REREAD_AFTER):
            found = _read[key] = time.monotonic(), _read_month(now)
        return found[1]


def _read_month(now: float) -> Seconds:
    begin = datetime.fromtimestamp(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    total: defaultdict[MachineType, float] = defaultdict(float)
    known = set()
    for one in api.jobs(warn=lambda _: None):
        known.add((one.id, one.created_at))
        if one.updated_at >= begin or not one.done or one.allocation is not None:
            with suppress(TpuxError):
                for kind, seconds in _used(one.id, now, begin).items():
                    total[kind] += seconds
    for held in read_ledger():
        if (held.job, held.created_at) not in known:
            total[held.kind] += held.seconds(begin, now)
    return total


def _next_month(now: float) -> float:
    today = datetime.fromtimestamp(now)
    year, month = divmod(today.year * 12 + today.month, 12)
    return datetime(year, month + 1, 1).timestamp()


def _cost_key(config: LimitsSection) -> str:
    return "limits.cost" if config.cost is not None else "limits.month.cost"
