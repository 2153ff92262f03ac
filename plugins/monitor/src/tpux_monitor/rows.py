"""The table of the monitor as text: which jobs it has, in which order, and what fits into its width."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpux.api import JobInfo
from tpux.api.text import cell_width, describe_failure, fit, format_age, printable

ACTIVE = ("running", "setting-up", "provisioning", "pending", "recovering", "stopping")
COLUMNS = ("id", "name", "user", "state", "for", "tpu", "zone", "workers", "try", "progress", "tags", "last line")
REQUIRED = ("id", "name", "state", "for")
WIDE = ("user", "tags", "zone", "workers")
"""The columns that are shown only where the last line has enough space beside them, the least important one first."""
ENOUGH_LAST = 40
LEFT_OUT_FIRST = (*WIDE, "progress", "try", "tpu", "last line")
"""The columns that a narrow terminal does not show, the least important one first."""
LONGEST = {"name": 24, "user": 12, "tpu": 12, "zone": 16, "progress": 24, "tags": 24}
"""Cells of these columns are cut to this width."""
LEAST_NAME = 12
"""Cells that a name is shortened to before a column is left out."""
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
            "user": info.user,
            "state": info.state,
            "for": format_age(max(0.0, now - info.since)),
            "tpu": info.accelerator or "",
            "zone": info.zone or "",
            "workers": str(info.workers) if info.workers > 1 else "",
            "try": str(info.attempt) if info.attempt > 1 else "",
            "progress": str(info.progress or "").partition(", ")[0],  # the loss is in the last line
            "tags": " ".join(info.tags),
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


def summary(jobs: Sequence[JobInfo], width: int | None = None) -> str:
    """Return how many jobs there are of each state, such as `12 jobs: 3 running, 1 failed`.

    Args:
        jobs: the jobs.
        width: the cells that there are; the last states are left out beyond that.
    """
    states = [job.state for job in jobs]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=_rank))]
    text = f"{len(jobs)} job{'s' * (len(jobs) != 1)}" + (f": {', '.join(counts)}" if counts else "")
    while width is not None and cell_width(text) > width and ", " in text:
        text = text.removesuffix(", …").rpartition(", ")[0] + ", …"
    return text


def why_empty(words: str, *, failures: bool, count: int) -> str:
    """Return why the table has no row, and what shows some."""
    if not count:
        return "no jobs; `tpux run CONFIG` starts one"
    of_state = "failed or stopped " if failures else ""
    ends = " and ".join([*(["Esc ends the filter"] if words else []), *(["z shows the others"] if failures else [])])
    return f"no {of_state}job" + (f" matches {words!r}" if words else "") + f", of {count}; {ends}"


def _rank(state: str) -> int:
    """Return the place of a state among the counts: what a user has to look after comes first."""
    first = ("running", "failed", "recovering")
    return (*first, *(name for name in (*ACTIVE, "stopped", "succeeded") if name not in first)).index(state)


def columns_of(text: str) -> tuple[tuple[str, ...], str]:
    """Return the columns that a list names, in its order; and what is wrong with it, "" if nothing is."""
    names = tuple(filter(None, (name.strip().lower() for name in text.split(","))))
    unknown = [name for name in names if name not in COLUMNS]
    return names, f"no column {unknown[0]!r}; there are {', '.join(COLUMNS)}" if unknown else ""


def layout(cells: Sequence[dict[str, str]], width: int, chosen: Sequence[str] = ()) -> dict[str, int]:
    """Return the columns that are shown, with their widths: empty ones are not, and those that do not fit neither.

    Args:
        cells: those of each job.
        width: the terminal's, in cells.
        chosen: the columns, in their order; by default what there is space for.
    """
    widths = {name: max([len(name), *(cell_width(row[name]) for row in cells)]) for name in chosen or COLUMNS}
    several = {row["user"] for row in cells}
    widths = {
        name: min(wide, LONGEST.get(name, wide))
        for name, wide in widths.items()
        if name in (chosen or REQUIRED) or (any(row[name] for row in cells) and (name != "user" or len(several) > 1))
    }
    last = widths.pop("last line", None)

    def left() -> int:
        return width - 1 - sum(widths.values()) - GAP * (len(widths) - (not last))

    for name in LEFT_OUT_FIRST:
        enough = ENOUGH_LAST if name in WIDE and not chosen else LEAST_LAST
        from_name = 0 if name in WIDE else max(0, widths.get("name", 0) - LEAST_NAME)
        if left() + from_name < (enough if last else 0):
            widths.pop(name, None)
    if "name" in widths:
        shortage = max(0, (LEAST_LAST if last and left() + widths["name"] - LEAST_NAME >= LEAST_LAST else 0) - left())
        widths["name"] = min(widths["name"], max(8, widths["name"] - shortage))
    if last and left() >= LEAST_LAST:
        widths["last line"] = left()
    return widths


def line(cells: dict[str, str], widths: dict[str, int], mark: str = " ") -> str:
    """Return a row as text; `mark` stands in front of it."""
    return mark + (" " * GAP).join(_pad(cells[name], width, name) for name, width in widths.items())


def _pad(text: str, width: int, column: str) -> str:
    end = text[-(width // 2) :] if column == "name" and text.isascii() else ""  # those of a series differ there
    cut = text if cell_width(text) <= width else fit(text, width - 1 - len(end)) + "…" + end
    return cut + " " * (width - cell_width(cut))
