"""`python -m benchmarks [NAME...]`: measure, print the table, and write docs/benchmarks.md when all was measured."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from tabulate import tabulate

from benchmarks.measure import Row

FIGURES = ("startup", "create", "many_jobs", "output", "reattach", "lag", "ssh_fanout", "emulated")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_MET = {True: "yes", False: "**no**", None: ""}


def main(names: list[str]) -> int:
    """Run the measurements of these names, or all."""
    if unknown := [name for name in names if name not in FIGURES]:
        print(f"there is no figure {unknown[0]!r}: they are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    rows: list[Row] = []
    broken = False
    for name in names or FIGURES:
        print(f"{name} ...", file=sys.stderr)
        try:
            rows += import_module(f"benchmarks.{name}").rows()
        except Exception as error:  # noqa: BLE001  (the others must be measured all the same)
            traceback.print_exc()
            rows.append(Row(name, f"could not be measured: {error}", "", met=False))
            broken = True
    table = tabulate(
        [(row.figure, row.value, row.target, _MET[row.met]) for row in rows],
        headers=("figure", "measured", "target", "met"),
        tablefmt="github",
        disable_numparse=True,
    )
    print(table)
    if not names and not broken:
        PAGE.write_text(page(table, load))
    return int(broken)


def page(table: str, load: float) -> str:
    """The page of the documentation; `load` is the machine's load average before anything was measured."""
    today = datetime.now(timezone.utc).date().isoformat()
    return f"""# Benchmarks

What tpux costs, as `make bench` measured it on {today} on {machine()}.
Other work on the machine: load average {load:.1f} before the first figure.
Times are medians; ratios are of pairs that ran in turns, in the same run. `benchmarks/` has each figure's
code, and its README says how they are measured.

{table}
"""


def machine() -> str:
    """The machine, in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"a machine with {os.cpu_count()} cores and {memory:.0f} GB of memory "
        f"(Linux {platform.release()}, Python {platform.python_version()})"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
