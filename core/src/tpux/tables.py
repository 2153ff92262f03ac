"""Tables: one line for each row, on a terminal no wider than it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping

from tpux.console import cell_width, echo_painted, fit, printable

GAP = 2
"""Blanks between two columns."""


def print_table(
    table: Mapping[str, list[str]],
    *,
    always: Collection[str] = (),
    drop: Iterable[str] = (),
    shorten: Mapping[str, int] | None = None,
    painters: Mapping[str, Callable[[str], str]] | None = None,
) -> None:
    """Print a table without columns that are empty; on a terminal, one that fits it.

    Args:
        table: the cells of each column, by its head in lower case; `-` and `0` are empty ones.
        always: the columns that are shown also if they are empty.
        drop: the columns that are left out where the terminal is too narrow, the least important one first.
        shorten: the columns that are shortened then, with their least width; the first one before a column is dropped.
        painters: what colours the cells of a column.
    """
    from tabulate import tabulate

    shown = {
        name: list(map(printable, cells)) for name, cells in table.items() if name in always or {*cells} - {"-", "0"}
    }
    if sys.stdout.isatty():
        _fit_terminal(shown, shutil.get_terminal_size().columns, drop, shorten or {})
    for name, painter in (painters or {}).items():
        shown[name] = list(map(painter, shown[name]))
    headers = [name.upper() for name in shown]
    echo_painted(tabulate(zip(*shown.values(), strict=True), headers, tablefmt="plain", disable_numparse=True))


def _fit_terminal(table: dict[str, list[str]], width: int, drop: Iterable[str], shorten: Mapping[str, int]) -> None:
    """Drop columns, the least important one first, then shorten others until the table fits."""
    widths = {name: max(len(name) + GAP, *map(cell_width, cells)) for name, cells in table.items()}  # as tabulate does

    def over(names: Iterable[str]) -> int:
        return sum(widths[name] + GAP for name in names) - GAP - width

    first, least_first = next(iter(shorten.items()), ("", 0))
    spare = max(0, widths.get(first, 0) - least_first)
    for name in drop:
        if over(table) - spare <= 0:
            break
        table.pop(name, None)
    for name, least in shorten.items():
        if name in table and (excess := over(table)) > 0:
            widths[name] = max(least, widths[name] - excess)
            table[name] = [_shortened(cell, widths[name]) for cell in table[name]]


def _shortened(text: str, width: int) -> str:
    return text if cell_width(text) <= width else fit(text, width - 1) + "…"
