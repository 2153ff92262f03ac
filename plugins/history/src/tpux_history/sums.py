"""`tpux history --by`: machine hours and lost time of a period, by user, tag and type."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tpux import UsageError
from tpux_history.ledger import own_user
from tpux_history.use import Held, JobHistory, MachineType, Use

Key = Literal["user", "tag", "type"]
KEYS: tuple[Key, ...] = get_args(Key)
NO_TAG = ""


@dataclass
class Sum:
    """What the jobs of one group have used.

    Attributes:
        jobs: their ids.
        machine_seconds: times slices, of machines that cost money.
        seconds: of the jobs, by use.
    """

    jobs: set[tuple[str, str]] = field(default_factory=set)
    machine_seconds: defaultdict[MachineType, float] = field(default_factory=lambda: defaultdict(float))
    seconds: defaultdict[Use, float] = field(default_factory=lambda: defaultdict(float))


def parse_keys(text: str | None) -> tuple[Key, ...]:
    """Return what to sum by, each once.

    Raises:
        UsageError: there is no such key.
    """
    words = [word.strip().removesuffix("s") for word in text.split(",")] if text is not None else []
    keys: dict[Key, None] = {}
    for word in words:
        found = [key for key in KEYS if key == word]
        if not found:
            raise UsageError(f"--by: {word!r} is none of {', '.join(KEYS)}", hint="for example --by user,type")
        keys[found[0]] = None
    return tuple(keys)


def sum_up(
    found: Iterable[JobHistory],
    deleted: Iterable[Held],
    tags: Mapping[str, tuple[str, ...]],
    keys: tuple[Key, ...],
    begin: float,
    now: float,
) -> dict[tuple[str, ...], Sum]:
    """Return the sums of a period by the values of the keys, in their order.

    Args:
        found: the jobs.
        deleted: machines of jobs that have no record any more, and of other users' jobs.
        tags: the tags of the jobs by their ids.
        keys: what to sum by.
        begin: the begin of the period, in seconds since the epoch.
        now: its end.
    """
    sums: defaultdict[tuple[str, ...], Sum] = defaultdict(Sum)

    def groups(user: str, of_job: tuple[str, ...], kind: MachineType) -> list[Sum]:
        values: dict[Key, tuple[str, ...]] = {"user": (user,), "tag": of_job or (NO_TAG,), "type": (str(kind),)}
        return [sums[group] for group in itertools.product(*(values[key] for key in keys))]

    for job in found:
        of_job = tags.get(job.id, ())
        for kind, seconds in job.machine_seconds.items():
            for one in groups(own_user(), of_job, kind):
                one.jobs.add((own_user(), job.id))
                one.machine_seconds[kind] += seconds
        for (kind, use), seconds in job.seconds_of.items():
            for one in groups(own_user(), of_job, kind):
                one.jobs.add((own_user(), job.id))
                one.seconds[use] += seconds
    for held in deleted:
        for one in groups(held.user, held.tags, held.kind):
            one.jobs.add((held.user, f"{held.job} {held.created_at}"))
            one.machine_seconds[held.kind] += held.seconds(begin, now)
    return dict(sorted(sums.items()))
