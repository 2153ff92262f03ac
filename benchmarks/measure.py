"""What the figures have in common: rows of the table, costs of processes, pairs that are run side by side.

Other people's work shares the machine, so CPU seconds are compared and not wall time, wherever that says
enough, and what is compared is run in turns (A B A B ...): what disturbs one disturbs the other.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        figure: what was measured.
        value: how it came out, with its unit.
        target: what it shall be; empty where nothing was set.
        met: whether it is; None where nothing was set.
    """

    figure: str
    value: str
    target: str = ""
    met: bool | None = None


def at_most(figure: str, value: float, limit: float, *, unit: str = "", note: str = "") -> Row:
    """A row for a value that must not be above `limit`."""
    told = f"{value:.3g}{unit}" + (f" ({note})" if note else "")
    return Row(figure, told, f"at most {limit:g}{unit}", value <= limit)


def cpu(argv: Sequence[str | Path], env: dict[str, str] | None = None) -> float:
    """CPU seconds of a command, user and system, with the children it waited for.

    Raises:
        subprocess.CalledProcessError: it failed, and its cost says nothing.
    """
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(map(str, argv)))
    return usage.ru_utime + usage.ru_stime


def in_turns(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """The values of each measure, taken in turns; a first round warms the caches and does not count."""
    taken = [[measure() for measure in measures] for _ in range(rounds + 1)][1:]
    return [list(values) for values in zip(*taken, strict=True)]


def ratio(values: Sequence[float], floor: Sequence[float]) -> float:
    """The median of the ratios, pair by pair."""
    return median(value / other for value, other in zip(values, floor, strict=True))


def cpu_of(pid: int) -> float:
    """CPU seconds that a running process has used so far, with the children it waited for."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / _TICK


def memory_of(pid: int, what: str = "VmHWM") -> float:
    """Megabytes of memory (RSS) that a running process has used at the most (`VmHWM`), or uses now (`VmRSS`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024 / 1e6


def until(what: Callable[[], bool], *, within: float, why: str, every: float = 0.05) -> float:
    """Wait until `what()` holds; how many seconds that took.

    Raises:
        TimeoutError: it did not within that many seconds.
    """
    start = time.monotonic()
    while not what():
        if time.monotonic() - start > within:
            raise TimeoutError(f"waited {within:.0f} s in vain for {why}")
        time.sleep(every)
    return time.monotonic() - start
