"""Tables: one line for each row, on a terminal no wider than it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping

from tpux.console import cell_width, echo, echo_painted, fit, printable

GAP = 2
"""Blanks between two columns."""
LEAST_WRAPPED = 8
"""The narrowest that the cells of a column are wrapped to."""


def print_table(
    table: Mapping[str, list[str]],
    *,
    always: Collection[str] = (),
    drop: Iterable[str] = (),
    wrap: Mapping[str, int] | None = None,
    shorten: Mapping[str, int] | None = None,
    painters: Mapping[str, Callable[[str], str]] | None = None,
) -> None:
    """Print a table without columns that are empty; on a terminal, one that fits it.

    Args:
        table: the cells of each column, by its head in lower case; `-` and `0` are empty ones.
        always: the columns that are shown also if they are empty.
        drop: the columns that are left out where the terminal is too narrow, the least important one first.
        wrap: the columns whose cells are wrapped then, with the width to which they are before a column is dropped.
        shorten: the columns that are shortened then, with their least width; the first one before a column is dropped.
        painters: what colours the cells of a column.
    """
    from tabulate import tabulate

    shown = {
        name: list(map(printable, cells)) for name, cells in table.items() if name in always or {*cells} - {"-", "0"}
    }
    if sys.stdout.isatty():
        _fit_terminal(shown, shutil.get_terminal_size().columns, drop, wrap or {}, shorten or {})
    for name, painter in (painters or {}).items():
        shown[name] = list(map(painter, shown[name]))
    headers = [name.upper() for name in shown]
    echo_painted(tabulate(zip(*shown.values(), strict=True), headers, tablefmt="plain", disable_numparse=True))


def print_paragraph(text: str) -> None:
    """Print prose; on a terminal, wrapped to its width."""
    width = shutil.get_terminal_size().columns
    echo(textwrap.fill(text, width, break_on_hyphens=False) if sys.stdout.isatty() else text)


def _fit_terminal(
    table: dict[str, list[str]],
    width: int,
    drop: Iterable[str],
    wrap: Mapping[str, int],
    shorten: Mapping[str, int],
) -> None:
    """Drop columns, the least important one first, then wrap and shorten others until the table fits.

    Args:
        table: the cells of each column, which are changed.
        width: of the terminal, in cells.
        drop: the columns that may be dropped, the least important one first.
        wrap: the columns whose cells may be wrapped, with their width then.
        shorten: the columns that may be shortened, with their least width.
    """
    widths = {name: max(len(name) + GAP, *map(cell_width, cells)) for name, cells in table.items()}  # as tabulate does

    def over(names: Iterable[str]) -> int:
        return sum(widths[name] + GAP for name in names) - GAP - width

    least_widths = {**wrap, **dict(list(shorten.items())[:1])}

    def spare() -> int:
        return sum(max(0, widths[name] - least) for name, least in least_widths.items() if name in table)

    for name in drop:
        if over(table) - spare() <= 0:
            break
        table.pop(name, None)
    wrapped = {name: table[name] for name in wrap if name in table}
    limit = max((widths[name] for name in wrapped), default=0)
    while over(table) > 0 and limit > LEAST_WRAPPED:
        limit -= 1
        for name, cells in wrapped.items():
            table[name] = ["\n".join(textwrap.wrap(cell, limit, break_on_hyphens=False)) for cell in cells]
            lines = [line for cell in table[name] for line in cell.split("\n")]
            widths[name] = max(len(name) + GAP, *map(cell_width, lines))
    for name, least in shorten.items():
        if name in table and (excess := over(table)) > 0:
            widths[name] = max(least, widths[name] - excess)
            table[name] = [_shortened(cell, widths[name]) for cell in table[name]]


def _shortened(text: str, width: int) -> str:
    return text if cell_width(text) <= width else fit(text, width - 1) + "…"
