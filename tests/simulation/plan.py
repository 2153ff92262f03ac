"""Which lives there are: each fault at each point of each scenario, and pairs of faults, in an order by seed."""

from __future__ import annotations

import random
from functools import cache

from tests.simulation.faults import KINDS, Fault
from tests.simulation.life import SCENARIOS, Life, live

PAIRED = 0.25
"""Which part of the lives has two faults."""


@cache
def points(scenario: str) -> dict[str, int]:
    """Return the points of a scenario in which nothing goes wrong, and how often each is visited."""
    return dict(live(Life(scenario)).points)


@cache
def faults(scenario: str) -> list[Fault]:
    """Return each fault at the first visit of each point of a scenario, in a mixed order."""
    found = [Fault(point, kind) for point in points(scenario) for kind in kinds(point)]
    random.Random(0).shuffle(found)
    return found


def kinds(point: str) -> tuple[str, ...]:
    """Return the faults that may happen at a point."""
    group, _, place = point.partition(": ")
    without = {"death in the middle"} if not place.startswith("write") else set()
    without |= {"late effect"} if not place.startswith("provision") else set()
    return tuple(kind for kind in KINDS[group] if kind not in without)


def life(number: int) -> Life:
    """Return the life of this number, from 0, which is also its seed. Those of a scenario are `len(SCENARIOS)` apart.

    Those with one fault go through `faults`; after the last of them, the fault happens at a later visit of its point.
    """
    choose, scenario = random.Random(number), list(SCENARIOS)[number % len(SCENARIOS)]
    visited, every = points(scenario), faults(scenario)
    if choose.random() < PAIRED:
        chosen = choose.choices(list(visited), k=2)
        pair = [Fault(one, choose.choice(kinds(one)), choose.randint(1, min(visited[one], 5))) for one in chosen]
        return Life(scenario, tuple(dict.fromkeys(pair)), number)
    turn, index = divmod(number // len(SCENARIOS), len(every))
    fault = every[index]
    hit = choose.randint(1, visited[fault.point]) if turn else 1
    return Life(scenario, (Fault(fault.point, fault.kind, hit),), number)


def numbers(scenario: str, first: int, last: int) -> list[int]:
    """Return the numbers of some lives of a scenario: the first one's, and so on."""
    offset = list(SCENARIOS).index(scenario)
    return [each * len(SCENARIOS) + offset for each in range(first, last)]
