"""How each attempt of a job spent its time, as a bar: waiting for machines, set-up, run, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpux.durations import format_duration
from tpux.model.events import AttemptEnded, AttemptStarted, Event, Failed, StateChanged

if TYPE_CHECKING:
    from tpux.model.failures import Failure

LEGEND = "q queue  s set-up  # run  x taken away  ! failed"
LAST = 10
"""How many attempts are shown, the newest ones."""
WIDTH = 32
"""Characters of the bar of the longest attempt."""
_PHASES = {
    **dict.fromkeys(("pending", "provisioning", "recovering"), "q"),
    **dict.fromkeys(("running", "stopping"), "#"),
    "setting-up": "s",
}


@dataclass
class Attempt:
    """One attempt, with the time since the end of the one before.

    Attributes:
        number: its number; 0 if it ended before it started.
        seconds: how long it was in each phase, by the phase's character, in their order.
        end: the character that says how it ended; `>` if it has not.
        note: why it ended, and how far it came.
    """

    number: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    end: str = ">"
    note: str = ""

    @property
    def lasted(self) -> float:
        """How long it took."""
        return sum(self.seconds.values())


def find_attempts(events: Iterable[Event], now: float) -> list[Attempt]:
    """Return the attempts of a job, oldest first.

    Args:
        events: the job's events.
        now: until when the current one has lasted, in seconds since the epoch.
    """
    attempts = [Attempt()]
    phase, since = "", 0.0
    failure: Failure | None = None

    def count(at: float) -> None:
        nonlocal since
        if phase:
            seconds = attempts[-1].seconds
            seconds[phase] = seconds.get(phase, 0.0) + max(0.0, at - since)
        since = at

    for event in events:
        if isinstance(event, StateChanged):
            count(event.at)
            phase = _PHASES.get(event.to, "")
            if not phase and attempts[-1].seconds:  # it ended before the program ran
                _end(attempts[-1], failure if event.to == "failed" else None)
                attempts.append(Attempt())
        elif isinstance(event, AttemptStarted):
            attempts[-1].number = event.attempt
        elif isinstance(event, Failed):
            failure = event.failure
        elif isinstance(event, AttemptEnded):
            count(event.at)
            phase = ""
            _end(attempts[-1], event.failure, stopped=event.stopped)
            if event.progress is not None and event.progress.step is not None:
                attempts[-1].note += f"{', ' if attempts[-1].note else ''}step {event.progress.step}"
            attempts.append(Attempt())
    count(now)
    return [attempt for attempt in attempts if attempt.number or attempt.lasted >= 1]


def _end(attempt: Attempt, failure: Failure | None, *, stopped: bool = False) -> None:
    taken = failure is not None and failure.kind == "preempted"
    attempt.end = "x" if taken else "!" if failure else "|"
    if failure is not None:
        attempt.note = "taken away" if taken else failure.evidence.partition("\n")[0].partition(": ")[0] or failure.kind
    elif stopped:
        attempt.note = "stopped"


def bars(attempts: list[Attempt]) -> Iterator[tuple[str, str, str]]:
    """Yield the number, the bar and what follows it for each attempt; the longest one has a bar of `WIDTH`."""
    longest = max((attempt.lasted for attempt in attempts), default=0.0) or 1.0
    for attempt in attempts:
        marks = (mark * max(1, round(WIDTH * took / longest)) for mark, took in attempt.seconds.items())
        after = f"{format_duration(attempt.lasted)}  {attempt.note}".rstrip()
        yield str(attempt.number or "-"), "".join(marks) + attempt.end, after
