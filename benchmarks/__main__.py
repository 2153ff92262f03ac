"""`python -m benchmarks [NAME...]`: run benchmarks and print a table; without names, also write docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from tabulate import tabulate

from benchmarks.measure import Row

BENCHMARKS = (
    "startup",
    "monitor",
    "create",
    "many_jobs",
    "output",
    "reattach",
    "lag",
    "ssh_fanout",
    "emulated",
    "recovery",
    "classify",
    "sync",
    "modules",
    "fetching",
    "slurm",
    "web",
)
BY_NAME = ("peers",)
"""Those that only run if they are named: they need what `make bench-peers` installs."""
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_MET = {True: "yes", False: "**no**", None: ""}


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, or all, and return the exit code."""
    if unknown := [name for name in names if name not in BENCHMARKS + BY_NAME]:
        print(
            f"unknown benchmark {unknown[0]!r}; the benchmarks are {', '.join(BENCHMARKS + BY_NAME)}", file=sys.stderr
        )
        return 2
    load = os.getloadavg()[0]
    rows: list[Row] = []
    failed = False
    for name in names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr)
        try:
            rows += import_module(f"benchmarks.{name}").rows()
        except Exception as error:  # noqa: BLE001  (one failure must not prevent the others)
            traceback.print_exc()
            rows.append(Row(name, f"failed: {error}", "", met=False))
            failed = True
    table = tabulate(
        [(row.figure, row.value, row.target, _MET[row.met]) for row in rows],
        headers=("benchmark", "result", "target", "met"),
        tablefmt="github",
        disable_numparse=True,
    )
    print(table)
    if not names and not failed:
        PAGE.write_text(page(table, load))
    return int(failed)


def page(table: str, load: float) -> str:
    """Return the text of docs/benchmarks.md.

    Args:
        table: the results.
        load: the load average (1 minute) of the machine before the first benchmark.
    """
    today = datetime.now(UTC).date().isoformat()
    return f"""# Benchmarks

Measured by `make bench` on {today} on {machine()}.
Load average before the first benchmark: {load:.1f}.
Times are medians. A ratio compares two measurements that alternated in the same run. The code of each benchmark is in
`benchmarks/`, and its README describes the method.

{table}
"""


def machine() -> str:
    """Return a description of the machine: cores, memory, versions of Linux and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"a machine with {os.cpu_count()} cores and {memory:.0f} GB of memory "
        f"(Linux {platform.release()}, Python {platform.python_version()})"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
