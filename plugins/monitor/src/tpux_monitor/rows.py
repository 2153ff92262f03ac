"""The table of the monitor as text: which jobs it has, in which order, and what fits into its width."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpux.api import JobInfo
from tpux.api.text import cell_width, describe_failure, fit, format_age, printable

ACTIVE = ("running", "setting-up", "provisioning", "pending", "recovering", "stopping")
COLUMNS = ("id", "name", "state", "for", "tpu", "try", "progress", "last line")
LEFT_OUT_FIRST = ("progress", "try", "tpu", "last line")
"""The columns that a narrow terminal does not show, the least important one first."""
LONGEST = {"name": 24, "tpu": 12, "progress": 24}
"""Cells of these columns are cut to this width."""
LEAST_LAST = 12
GAP = 2
ORDERS: dict[str, Callable[[JobInfo], tuple[object, ...]]] = {
    "newest": lambda job: (job.ended, -int(job.id)),
    "state": lambda job: ((*ACTIVE, "failed", "stopped", "succeeded").index(job.state), -int(job.id)),
    "name": lambda job: (job.name, -int(job.id)),
}
"""What the rows can be sorted by."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Job:
    """A job, and the last line of its output; "" if there is none."""

    info: JobInfo
    last_line: str = ""

    def cells(self, now: float) -> dict[str, str]:
        """Return its cells by column."""
        info = self.info
        waits = info.why if not info.ended and info.state != "running" else ""
        because = describe_failure(info.failure) if info.state == "failed" and info.failure else info.why
        cells = {
            "id": str(int(info.id)),
            "name": info.name,
            "state": info.state,
            "for": format_age(max(0.0, now - info.since)),
            "tpu": info.accelerator or "",
            "try": str(info.attempt) if info.attempt > 1 else "",
            "progress": str(info.progress or "").partition(", ")[0],  # the loss is in the last line
            "last line": waits or (because if info.ended else self.last_line or because),
        }
        return {name: next(iter(printable(text).splitlines()), "") for name, text in cells.items()}


def matches(job: JobInfo, text: str) -> bool:
    """Return whether a job has all words of a filter: `state:failed`, or a part of its id or name; `!` negates one."""
    return all(_has(job, word.removeprefix("!")) is not word.startswith("!") for word in text.split())


def _has(job: JobInfo, word: str) -> bool:
    key, colon, value = word.partition(":")
    fields = {"state": job.state, "user": job.user, "name": job.name, "tpu": job.accelerator, "zone": job.zone}
    if colon and key == "tag":
        return value in job.tags
    if colon and key in fields:
        return value in (fields[key] or "")
    return word in job.name or word == str(int(job.id))


def summary(jobs: Sequence[JobInfo]) -> str:
    """Return how many jobs there are of each state, such as `12 jobs: 3 running, 1 failed`."""
    states = [job.state for job in jobs]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=_rank))]
    return f"{len(jobs)} job{'s' * (len(jobs) != 1)}" + (f": {', '.join(counts)}" if counts else "")


def _rank(state: str) -> int:
    return (*ACTIVE, "failed", "stopped", "succeeded").index(state)


def layout(cells: Sequence[dict[str, str]], width: int) -> dict[str, int]:
    """Return the columns that are shown, with their widths: empty ones are not, and those that do not fit neither.

    Args:
        cells: those of each job.
        width: the terminal's, in cells.
    """
    widths = {name: max([len(name), *(cell_width(row[name]) for row in cells)]) for name in COLUMNS}
    widths = {
        name: min(wide, LONGEST.get(name, wide))
        for name, wide in widths.items()
        if name in ("id", "name", "state", "for") or any(row[name] for row in cells)
    }
    last = widths.pop("last line", None)

    def left() -> int:
        return width - 1 - sum(widths.values()) - GAP * len(widths)

    for name in LEFT_OUT_FIRST:
        if left() >= (LEAST_LAST if last else 0):
            break
        widths.pop(name, None)
    widths["name"] = max(8, min(widths["name"], widths["name"] + left()))
    if last and left() >= LEAST_LAST:
        widths["last line"] = left()
    return widths


def line(cells: dict[str, str], widths: dict[str, int], mark: str = " ") -> str:
    """Return a row as text; `mark` stands in front of it."""
    return mark + (" " * GAP).join(_pad(cells[name], width) for name, width in widths.items())


def _pad(text: str, width: int) -> str:
    cut = text if cell_width(text) <= width else fit(text, width - 1) + "…"
    return cut + " " * (width - cell_width(cut))
