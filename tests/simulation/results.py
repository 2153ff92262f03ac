"""What the lives of `make faults` have come to, as it is kept in `results.json` and shown in docs/reliability.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests import figures
from tests.simulation.faults import HANG, KINDS

FILE = Path(__file__).with_name("results.json")
PAIR, NONE = "two faults", "no fault"
LABELS = {"hang": f"late by {HANG:.0f} s, then an error (a write: none)"}
"""What the page calls a fault, if not as the lives do."""


def digest() -> str:
    """Return what tells one version of the code and of the simulation from another."""
    return figures.digest("core/src", "tests/simulation/*.py")


def summarize(lines: Iterable[Mapping[str, object]], date: str, code: str) -> dict[str, object]:
    """Return the figures of lives, each as `__main__` has written it.

    Args:
        lines: the lives.
        date: when they were run.
        code: the digest of the code.
    """
    lives: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    points: dict[str, set[str]] = {group: set() for group in KINDS}
    number = 0
    for line in lines:
        number += 1
        faults = [(str(point), str(kind)) for point, kind in line["faults"]]  # type: ignore[attr-defined]
        for point, _ in faults:
            points[point.partition(": ")[0]].add(point)
        single = [f"{point.partition(': ')[0]}: {kind}" for point, kind in faults]
        key = PAIR if len(faults) > 1 else single[0] if faults else NONE
        lives[key] += 1
        violations[key] += bool(line["violations"])
    return {
        "date": date,
        "code": code,
        "lives": number,
        "violations": sum(violations.values()),
        "points": {group: len(found) for group, found in points.items()},
        "rows": {key: [count, violations[key]] for key, count in sorted(lives.items())},
    }


def document() -> list[str]:
    """Return the part of docs/reliability.md about them."""
    if not FILE.exists():
        return []
    found = json.loads(FILE.read_text())
    rows, points = found["rows"], found["points"]
    places = {"store": "writes to the store", "allocator": "calls of an allocator", "worker": "exchanges with a worker"}
    kinds = list(dict.fromkeys(kind for each in KINDS.values() for kind in each))

    def cell(key: str) -> str:
        lives, violations = rows.get(key, (0, 0))
        return f"{lives} / {violations}" if lives else "-"

    pairs, none = rows.get(PAIR, (0, 0)), rows.get(NONE, (0, 0))
    without = f"; with none, as its point was not reached: {none[0]} / {none[1]}" if none[0] else ""
    date = found["date"] if found.get("code") == digest() else f"{found['date']}, {figures.OTHER}"

    def row(kind: str) -> str:
        return f"| {LABELS.get(kind, kind)} | " + " | ".join(cell(f"{group}: {kind}") for group in places) + " |"

    return [
        "## Simulated lives",
        "",
        "`make faults` lets a job live in one process: the core is real; the clock, the cloud, the workers and the",
        "disk are simulated. Something goes wrong at a point, which is a place in the code and the state of the job.",
        "At the end the store can be read, no lock and no machine is left, no job has had two allocations at a time,",
        "each attempt was started once on each worker, its logs are what it has written, a stop was honoured, and the",
        "job has ended as it should.",
        "",
        f"{date}: {found['lives']} lives, {found['violations']} with a violation.",
        f"Lives / violations with one fault (with two: {pairs[0]} / {pairs[1]}{without}):",
        "",
        "| fault | " + " | ".join(f"{text} ({points[group]} points)" for group, text in places.items()) + " |",
        "|---|---|---|---|",
        *map(row, kinds),
        "",
    ]
