"""What happened to a job in a period: its important events, and on what its time and its machines' time was spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tpux import Allocation, events

Event = events.Event
Use = Literal["running", "queueing", "set-up", "preemption", "failures"]
"""What a job's time is spent on. What follows a lost machine until the program runs again is `preemption`, and what
follows another failure `failures`; else waiting for machines is `queueing`."""
LOST_MACHINES = ("preempted", "maintenance", "host-lost", "unreachable")
"""The kinds of failures after which a job needs new machines."""
ENDS = {"stopped", "succeeded", "failed"}
"""The states in which a job has ended."""
USES: tuple[Use, ...] = ("running", "queueing", "set-up", "preemption", "failures")
IMPORTANT = (
    events.Created,
    events.Allocated,
    events.PreemptionAnnounced,
    events.Warned,
    events.AttemptEnded,
    events.Failed,
    events.Released,
    events.TakenOver,
    events.Transferred,
    events.RequestAccepted,
    events.ConfigChanged,
)
"""Shown, and with them restarts and the end of a job."""
MACHINES_CAME = (events.Allocated, events.TakenOver)


@dataclass(frozen=True)
class MachineType:
    """What machine hours are counted by."""

    accelerator: str
    pricing: str
    zone: str = ""

    def __str__(self) -> str:
        return f"{self.accelerator} {self.pricing}".strip()


@dataclass(frozen=True)
class Held:
    """Machines that cost money, from their allocation to their release.

    Attributes:
        job: the id of the job that held them.
        name: its name.
        created_at: when it was created, which tells it from a job of the same id in another store.
        accelerator: their type.
        pricing: spot, preemptible, ondemand, or "" if that is unknown.
        zone: where they were, "" if they have no zone.
        slices: the number of slices.
        start: when they were allocated, in seconds since the epoch.
        end: when their release was confirmed.
        tags: the tags of the job at that time.
        user: whose job it was, "" in lines of an older ledger.
    """

    job: str
    name: str
    created_at: float
    accelerator: str
    pricing: str
    zone: str
    slices: int
    start: float
    end: float
    tags: tuple[str, ...] = ()
    user: str = ""

    @property
    def kind(self) -> MachineType:
        """What their hours are counted by."""
        return MachineType(self.accelerator, self.pricing, self.zone)

    def seconds(self, since: float, until: float) -> float:
        """Return for how long they were held in a period, times their slices."""
        return max(0.0, min(self.end, until) - max(self.start, since)) * self.slices


@dataclass
class JobHistory:
    """What happened to a job in a period.

    Attributes:
        state: at the end of the period.
        events: the important ones in the period.
        seconds: in the period, by use.
        seconds_of: the same by the type of machines that the job held, or got next.
        machine_seconds: for how long machines that cost money were held in the period, times their slices.
        repeated_steps: steps that had to be done again after a failure or a stop.
        repeated_seconds: how long that took, as far as the rate is known.
    """

    id: str
    name: str
    state: str = "pending"
    events: list[Event] = field(default_factory=list)
    seconds: defaultdict[Use, float] = field(default_factory=lambda: defaultdict(float))
    seconds_of: defaultdict[tuple[MachineType, Use], float] = field(default_factory=lambda: defaultdict(float))
    machine_seconds: defaultdict[MachineType, float] = field(default_factory=lambda: defaultdict(float))
    repeated_steps: int = 0
    repeated_seconds: float = 0.0


def read_history(happened: Iterable[Event], since: float, until: float) -> JobHistory:
    """Return what happened to a job in a period.

    Args:
        happened: all events of the job, oldest first.
        since: the begin of the period, in seconds since the epoch.
        until: its end.
    """
    history = JobHistory("", "")
    walk = _Walk()
    for event in _until(happened, until):
        walk.spend(history, since, min(event.at, until))
        if isinstance(event, events.Created):
            history.id, history.name = event.id, event.name
        walk.apply(event)
        if isinstance(event, MACHINES_CAME):
            walk.assign(history)
        if event.at >= since:
            if _is_important(event):
                history.events.append(event)
            if isinstance(event, events.AttemptEnded):
                history.repeated_steps += event.repeated_steps
                rate = event.progress.rate if event.progress else None
                history.repeated_seconds += event.repeated_steps / rate if rate else 0.0
    walk.spend(history, since, until)
    walk.assign(history)
    history.state = walk.state
    return history


def read_held(happened: Iterable[Event]) -> Iterator[Held]:
    """Yield the machines that cost money and that a job has held and given up, oldest first.

    Args:
        happened: all events of the job, oldest first.
    """
    created, accelerator = events.Created(id="", user="", name=""), ""
    allocation: Allocation | None = None
    start = 0.0
    for event in happened:
        match event:
            case events.Created():
                created, accelerator = event, event.accelerator or ""
            case events.ConfigChanged():
                accelerator = event.accelerator or ""
            case events.Allocated() | events.TakenOver():
                allocation, start = event.allocation, event.at
            case events.Released() | events.Transferred():
                if allocation is not None and allocation.costs:
                    kind = allocation.accelerator or accelerator or "unknown"
                    place = (kind, allocation.pricing, allocation.zone, allocation.slices)
                    yield Held(created.id, created.name, created.at, *place, start, event.at, user=created.user)
                allocation = None


def _until(happened: Iterable[Event], until: float) -> Iterator[Event]:
    return (event for event in happened if event.at <= until)


class _Walk:
    """The state of a job as far as its use of time depends on it, event by event."""

    def __init__(self) -> None:
        self.state: str = "pending"
        self._at: float | None = None
        self._cause: Use | None = None
        self._accelerator = ""
        self._allocation: Allocation | None = None
        self._unassigned: defaultdict[Use, float] = defaultdict(float)

    def spend(self, history: JobHistory, since: float, until: float) -> None:
        """Count the time since the last event, as far as it is within the period."""
        began, self._at = max(self._at or until, since), max(self._at or until, until)  # the clock may be set back
        if (seconds := until - began) <= 0:
            return
        if (use := self._use()) is not None:
            history.seconds[use] += seconds
            self._unassigned[use] += seconds
            if self._allocation is not None:
                self.assign(history)
        if (machines := self._allocation) is not None and machines.costs:
            history.machine_seconds[self._kind()] += seconds * machines.slices

    def assign(self, history: JobHistory) -> None:
        """Count what was spent since the last machines for those that the job holds now."""
        for use, seconds in self._unassigned.items():
            history.seconds_of[self._kind(), use] += seconds
        self._unassigned.clear()

    def _kind(self) -> MachineType:
        if (machines := self._allocation) is None:
            return MachineType(self._accelerator or "unknown", "")
        return MachineType(machines.accelerator or self._accelerator or "unknown", machines.pricing, machines.zone)

    def _use(self) -> Use | None:
        if self.state == "running":
            return "running"
        if self.state in ENDS or self.state == "stopping":
            return None
        return self._cause or ("set-up" if self.state == "setting-up" else "queueing")

    def apply(self, event: Event) -> None:
        """Note what an event changes."""
        match event:
            case events.Created() | events.ConfigChanged():
                self._accelerator = event.accelerator or ""
            case events.StateChanged():
                self.state = event.to
                if event.to == "recovering" and event.kind != "loop":
                    self._cause = "preemption" if event.kind in LOST_MACHINES else "failures"
                elif event.to in {"running", *ENDS}:
                    self._cause = None
            case events.Allocated() | events.TakenOver():
                self._allocation = event.allocation
            case events.Released() | events.Transferred():
                self._allocation = None


def _is_important(event: Event) -> bool:
    if isinstance(event, events.StateChanged):
        return event.to in {"recovering", *ENDS}
    return isinstance(event, IMPORTANT)
