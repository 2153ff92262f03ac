"""Measure CPU time, memory and durations, alternate measurements, and format results.

Other processes share the machine. Therefore CPU seconds are compared instead of wall time where possible, and the
compared measurements alternate (A B A B ...), so that a disturbance affects both.
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
        value: the result, with its unit.
        target: the target; empty if there is none.
        met: whether the target was met; None if there is none.
    """

    figure: str
    value: str
    target: str = ""
    met: bool | None = None


def at_most(figure: str, value: float, limit: float, *, unit: str = "", note: str = "") -> Row:
    """Return a row for a value that must not exceed `limit`."""
    text = f"{value:.3g}{unit}" + (f" ({note})" if note else "")
    return Row(figure, text, f"at most {limit:g}{unit}", value <= limit)


def cpu(argv: Sequence[str | Path], env: dict[str, str] | None = None) -> float:
    """Run a command and return its CPU seconds (user and system), including children that it waited for.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(map(str, argv)))
    return usage.ru_utime + usage.ru_stime


def alternate(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Run the measurements alternately and return the values of each; a first round warms the caches."""
    taken = [[measure() for measure in measures] for _ in range(rounds + 1)][1:]
    return [list(values) for values in zip(*taken, strict=True)]


def ratio(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the ratios, pair by pair."""
    return median(value / other for value, other in zip(values, baseline, strict=True))


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a running process so far, including children that it waited for."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / _TICK


def memory_of(pid: int, what: str = "VmHWM") -> float:
    """Return the memory (RSS) of a running process in MB: its peak (`VmHWM`), or the current value (`VmRSS`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024 / 1e6


def until(what: Callable[[], bool], *, within: float, why: str, every: float = 0.05) -> float:
    """Wait until `what()` is true.

    Args:
        what: the condition.
        within: seconds to wait at most.
        why: a description of the condition, for the error.
        every: seconds between two checks.

    Returns:
        Seconds waited.

    Raises:
        TimeoutError: the condition was still false after `within` seconds.
    """
    start = time.monotonic()
    while not what():
        if time.monotonic() - start > within:
            raise TimeoutError(f"timed out after {within:.0f} s waiting for {why}")
        time.sleep(every)
    return time.monotonic() - start
