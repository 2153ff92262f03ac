"""Plugin `limits`: machine hours and cost of a job, and of its user in a month; what is spent ends the job.

A job is examined at each of its events, every minute and, while its program runs, every `watch.resources_every`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
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
    """Refuse a limit of the cost of machines that have no price.

    What is used in this month is noted as well: the job waits if that is its limit, and requests no machines before.
    """
    config = job.sections.get("limits")
    if isinstance(config, LimitsSection) and config.month != MonthSection():
        with suppress(TpuxError, OSError):  # the monitor says so, and stops the job then
            _pause(_month_of(config, time.time(), job.watch.resources_every)[0], time.time())
    if not isinstance(config, LimitsSection) or (config.cost is None and config.month.cost is None):
        return []
    accelerator, prices = job.tpu.accelerator, read_prices()
    zones = getattr(job.tpu, "zone", None)
    found_later = job.tpu.allocation_mode == "pool" or getattr(job.tpu, "existing", False)
    pricing = ("spot", "preemptible", "ondemand") if found_later else (job.tpu.pricing,)
    if not accelerator:
        message = f"{_cost_key(config)} needs tpu.accelerator: without it no price is known"
        return [Finding("error", message, _cost_key(config), "set tpu.accelerator, or limit hours instead")]
    found = []
    for name in [accelerator] if isinstance(accelerator, str) else accelerator:
        places = [(zone, each) for zone in (zones if isinstance(zones, list) else [zones or ""]) for each in pricing]
        for zone, each in places:
            kind = MachineType(name, each, zone)
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
        with suppress(TpuxError):  # the record has gone
            enforce(job, config, event.at if isinstance(event, events.Tick) else None)  # other events may be old


def _examine(job: Job, config: LimitsSection) -> Generator[Step, Result, list[Finding]]:
    yield from ()
    found, unpriced, mistake = enforce(job, config)
    findings = [Finding("warning", one.text, where=one.key) for one in found if one.used >= WARN_AT * one.most]
    if mistake:
        findings.append(Finding("warning", f"{_cost_key(config)} is not enforced: {mistake}", where="limits"))
    elif unpriced:
        message = f"{_cost_key(config)} does not count {', '.join(unpriced)}: prices.yaml has no price"
        findings.append(Finding("warning", message, where="limits"))
    return findings or [Finding("ok", "; ".join(one.text for one in found), where="limits")]


def enforce(job: Job, config: LimitsSection, now: float | None = None) -> tuple[list[Limit], list[str], str]:
    """Stop a job that has reached a limit, and let the user's other jobs wait whose limit of the month that is.

    Args:
        job: the job.
        config: its limits.
        now: the time, by the clock of the supervisor; that of this machine if None.

    Returns:
        The limits, the types of machines whose price is not known, and what is wrong with prices.yaml.
    """
    now = time.time() if now is None else now
    own = _used(job.id, now)
    prices, mistake = _prices(config.cost)
    of_job = _compare("limits", config.hours, config.cost, own, prices)
    of_month, month, wrong = _month_of(config, now, job.watch.resources_every)
    _pause(of_month, now)
    state = api.job(job.id)
    allocation = state.allocation
    paid = allocation is not None and allocation.costs  # others are not counted either
    spent = [one for one in (*of_month, *of_job) if paid and one.used >= one.most]
    kept = state.release_at is None or state.release_at > now
    if spent and state.state != "stopping" and kept:
        with suppress(TimeoutError):  # the request is written; the supervisor, perhaps this process, carries it out
            api.stop(job.id, release=True, grace=config.grace, reason=f"stopped by {spent[0].text}", timeout=0)
    known = prices or _prices(config.month.cost)[0] or {}
    missing = [str(kind) for kind in {**own, **month} if known and price_of(kind, 1, known) is None]
    return [*of_job, *of_month], [*dict.fromkeys(missing)], mistake or wrong


def _prices(cost: float | None) -> tuple[Mapping[str, float] | None, str]:
    """Return the prices that a limit of the cost needs; with a mistake in them, None and the mistake."""
    try:
        return (read_prices() if cost else {}), ""
    except TpuxError as error:  # hours are limited without prices
        return None, str(error)


def _month_of(config: LimitsSection, now: float, reread_after: float) -> tuple[list[Limit], Seconds, str]:
    """Return the limits of the month, what is used in it, and what is wrong with prices.yaml."""
    month = _used_in_month(now, reread_after) if config.month != MonthSection() else {}
    prices, mistake = _prices(config.month.cost)
    return _compare("limits.month", config.month.hours, config.month.cost, month, prices), month, mistake


def _pause(of_month: list[Limit], now: float) -> None:
    """Note what is used in the month, which each job compares with its own limit before it requests machines."""
    for one in of_month:
        why = f"waits for the next month: {one.key}: {one.used:.2f} of {{limit}}{one.unit} used"
        api.supervisor.pause(one.key, one.used, why, _next_month(now))


def _compare(
    where: str, hours: float | None, cost: float | None, used: Seconds, prices: Mapping[str, float] | None
) -> list[Limit]:
    found = []
    if hours is not None:
        found.append(Limit(f"{where}.hours", sum(used.values()) / 3600, hours, " machine hours"))
    if cost is not None and prices is not None:
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
