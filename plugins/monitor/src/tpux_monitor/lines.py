"""A widget of plain lines, of which only those that have changed are sent to the terminal.

Textual's own table repaints all of itself: measured with 200 rows, that is 6 to 14 % of a core in place of 0.3 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

Line = tuple[tuple[str, str], ...]
"""Pieces of text, each with its rich style."""


class Lines(ScrollView):
    """Lines of text, one of which may be marked as selected."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._selected: int | None = None

    def replace(self, lines: Sequence[Line], selected: int | None = None) -> None:
        """Show other lines; what is equal is not painted again.

        Args:
            lines: the lines.
            selected: the number of the one that is marked.
        """
        before, marked = self._lines, self._selected
        self._lines, self._selected = list(lines), selected
        width = max((sum(len(text) for text, _ in line) for line in lines), default=0)
        size = Size(max(width, 1), len(lines))
        if size != self.virtual_size:
            self.virtual_size = size
        for number in range(max(len(before), len(lines))):
            same = number < min(len(before), len(lines)) and before[number] == lines[number]
            if not same or (marked != selected and number in (marked, selected)):
                self.refresh_line(number)

    def show_line(self, number: int) -> None:
        """Scroll so that a line is visible."""
        self.scroll_to_region(Region(self.scroll_offset.x, number, 1, 1), animate=False)

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        left, top = self.scroll_offset
        number, width = y + top, self.size.width
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        selected = Style(reverse=True) if number == self._selected else Style()
        segments = [Segment(text, Style.parse(style) + selected) for text, style in self._lines[number]]
        strip = Strip(segments).crop(left, left + width)
        filled = set_cell_size("", width - strip.cell_length)
        return Strip([*strip, Segment(filled, selected)], width)
