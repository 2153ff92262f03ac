"""A table on a terminal that is shown until Ctrl-C, and of which only the lines are written that have changed."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn


def repaint(lines: Callable[[], Iterable[str]], *, every: float) -> NoReturn:
    """Show lines below the cursor, and what they become.

    Args:
        lines: returns them, no longer than the terminal is wide.
        every: seconds between two calls.

    Raises:
        KeyboardInterrupt: the user has ended it; the cursor is below the last line.
    """
    shown: list[str] = []
    size = shutil.get_terminal_size()
    while True:
        now, new = shutil.get_terminal_size(), list(lines())
        if len(new) > now.lines - 1:
            new[now.lines - 2 :] = [f"... {len(new) - now.lines + 2} more lines"]
        if now != size and shown:  # the terminal has wrapped or moved what was there
            sys.stdout.write("\x1b[H\x1b[2J")
            shown = []
        sys.stdout.write(difference(shown, new))
        sys.stdout.flush()
        shown, size = new, now
        time.sleep(every)


def difference(shown: list[str], new: list[str]) -> str:
    """Return what a terminal makes of one list of lines the other; the cursor is below the lines, before and after."""
    moves = f"\x1b[{len(shown)}A" if shown else ""
    old = [*shown, *[""] * len(new)]
    changed = "".join(
        "\n" if line == old[index] and index < len(shown) else f"{line}\x1b[K\n" for index, line in enumerate(new)
    )
    return f"{moves}{changed}\x1b[J"
