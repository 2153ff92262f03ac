"""Tables: one line for each row, on a terminal no wider than it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain

from tpux.console import cell_width, echo, echo_painted, fit, printable

GAP = 2
"""Blanks between two columns."""
ELLIPSIS = "…"
LEAST_WRAPPED = 8
"""The narrowest that the cells of a column are wrapped to."""


def print_table(
    table: Mapping[str, list[str]],
    *,
    always: Collection[str] = (),
    drop: Iterable[str] = (),
    wrap: Mapping[str, int] | None = None,
    shorten: Mapping[str, int] | None = None,
    last: Mapping[str, int] | None = None,
    painters: Mapping[str, Callable[[str], str]] | None = None,
) -> None:
    """Print a table without columns that are empty; on a terminal, one that fits it.

    Args:
        table: the cells of each column, by its head in lower case; `-` and `0` are empty ones.
        always: the columns that are shown also if they are empty.
        drop: the columns that are left out where the terminal is too narrow, the least important one first.
        wrap: the columns whose cells are wrapped then, with the width to which they are before a column is dropped.
        shorten: the columns that are shortened then, with their least width; the first one before a column is dropped.
        last: the columns that are shortened if that is not enough, one after the other; 0 drops one.
        painters: what colours the cells of a column.
    """
    for line in table_lines(table, always, drop, wrap or {}, shorten or {}, last or {}, painters or {}):
        echo_painted(line)


def table_lines(
    table: Mapping[str, list[str]],
    always: Collection[str],
    drop: Iterable[str],
    wrap: Mapping[str, int],
    shorten: Mapping[str, int],
    last: Mapping[str, int],
    painters: Mapping[str, Callable[[str], str]],
) -> Iterator[str]:
    """Yield the lines of a table; see `print_table`."""
    shown = {
        name: list(map(printable, cells)) for name, cells in table.items() if name in always or {*cells} - {"-", "0"}
    }
    if sys.stdout.isatty():
        _fit_terminal(shown, shutil.get_terminal_size().columns, drop, wrap, shorten, last)
    columns = [[[name.upper()], *(cell.split("\n") for cell in cells)] for name, cells in shown.items()]
    widths = [max(cell_width(line) for cell in cells for line in cell) for cells in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        for index in range(max(map(len, row))):
            parts = []
            for name, cell, width in zip(shown, row, widths, strict=True):
                text = cell[index] if index < len(cell) else ""
                painted = painters[name](text) if number and text and name in painters else text
                parts.append(painted + " " * (width - cell_width(text)))
            yield (" " * GAP).join(parts).rstrip()


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
    last: Mapping[str, int],
) -> None:
    """Drop columns, the least important one first, then wrap and shorten others until the table fits.

    Args:
        table: the cells of each column, which are changed.
        width: of the terminal, in cells.
        drop: the columns that may be dropped, the least important one first.
        wrap: the columns whose cells may be wrapped, with their width then.
        shorten: the columns that may be shortened, with their least width.
        last: the columns that may be shortened more, or dropped.
    """
    widths = {name: max(len(name), *map(cell_width, cells)) for name, cells in table.items()}

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
            widths[name] = max(len(name), *map(cell_width, lines))
    for name, least in chain(shorten.items(), last.items()):
        if over(table) > 0 and not least:
            table.pop(name, None)
        elif name in table and (excess := over(table)) > 0:
            widths[name] = max(len(name), min(least, widths[name]), widths[name] - excess)
            table[name] = [_shortened(cell, widths[name], middle=name == "name") for cell in table[name]]


def _shortened(text: str, width: int, *, middle: bool) -> str:
    """Return a text cut to a width; names in the middle, since those of a series differ at their ends."""
    if cell_width(text) <= width:
        return text
    end = text[-(width // 2) :] if middle and text.isascii() else ""
    return fit(text, width - 1 - len(end)) + ELLIPSIS + end
