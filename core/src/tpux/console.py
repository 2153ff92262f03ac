"""Output conventions of every command, core's and plugins': data on stdout, messages on stderr.

What programs, plugins and clouds have written is printed with `say`, `echo` or `emit`, which keep its control
characters from the terminal, and which erase the live line first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING
from unicodedata import east_asian_width

import click
import typer

from tpux.durations import parse_duration
from tpux.errors import UsageError
from tpux.threads import later

_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, movements of the cursor
    "|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS, ...: title, clipboard
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_ESCAPED_BY_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_WORKER_COLOURS = ("cyan", "yellow", "green", "magenta", "blue")
STATE_COLOURS: dict[str, str] = {
    **dict.fromkeys(("pending", "provisioning", "setting-up", "recovering", "stopping"), "yellow"),
    "running": "cyan",
    "succeeded": "green",
    "stopped": "magenta",
    "failed": "red",
}
"""The colour of each state of a job."""

NOTICE_AFTER = 2.0
"""Seconds after which a command says what it waits for."""

_live_line_shown = False

if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
else:
    _ParamType = click.ParamType  # not generic at run time before click 8.4


class _DurationType(_ParamType):
    """The type of an option that is a duration, such as 30s, 1h30m, or a number of seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _DurationType()
"""For `typer.Option(click_type=DURATION)`; the value is in seconds."""


def new_app() -> typer.Typer:
    """Return a typer app without rich, which would double the start-up time."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def printable(text: str) -> str:
    r"""Return text without what could control a terminal; newlines and tabs are kept.

    Escape sequences are removed. Other control characters, marks that reverse the direction of writing, and bytes
    that are not UTF-8 are escaped, as `\x07`.
    """
    return _CONTROL.sub(_escape, _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def say(text: str, colour: str | None = None) -> None:
    """Print a status message to stderr, after `tpux: `.

    Args:
        text: the message.
        colour: of the message, where stderr shows colours; None is the terminal's own.
    """
    clear_live_line()
    typer.echo(f"tpux: {paint(text, colour, err=True)}", err=True)


@contextmanager
def waiting_for(what: Callable[[], str]) -> Iterator[None]:
    """Say what is waited for if that takes longer than `NOTICE_AFTER`.

    Args:
        what: returns what it is, at that time; "" if there is nothing to say.
    """
    with later(NOTICE_AFTER, lambda: say(f"waiting for {text}") if (text := what()) else None):
        yield


def echo(text: str) -> None:
    """Print a line of data to stdout."""
    clear_live_line()
    typer.echo(printable(text))


def emit(data: object) -> None:
    """Print JSON to stdout."""
    clear_live_line()
    text = json.dumps(data, indent=2, ensure_ascii=False)
    typer.echo(_NOT_ESCAPED_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def has_colours(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal that shows colours (no-color.org), or CLICOLOR_FORCE asks for them."""
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("CLICOLOR_FORCE", "0") != "0"
    return forced or (stream.isatty() and os.environ.get("TERM") != "dumb")


def paint(text: str, colour: str | None, *, err: bool = False) -> str:
    """Return text, without what could control a terminal, in a colour if stdout (or stderr) shows colours."""
    shown = printable(text)
    return click.style(shown, fg=colour) if colour and has_colours(sys.stderr if err else sys.stdout) else shown


def echo_painted(text: str) -> None:
    """Print a line whose parts come from `paint` to stdout."""
    clear_live_line()
    typer.echo(text, color=has_colours(sys.stdout) or None)


def worker_prefix(*workers: int) -> bytes:
    """Return what a line of workers' output begins with: their numbers, such as 0-3,5, in the colour of the first."""
    return paint(f"[{ranges(workers)}]", _WORKER_COLOURS[workers[0] % len(_WORKER_COLOURS)]).encode() + b" "


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text, such as `0-3,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def has_live_line() -> bool:
    """Return whether stderr is a terminal that can show a live line.

    Not if stdout is a pipe (`| tee out`, `| head`): what reads it may print on the same terminal at any time, behind
    the live line.
    """
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not _is_pipe(sys.stdout)


def _is_pipe(stream: IO[str]) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # closed, or not a file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def draw_live_line(text: str, suffix: str) -> None:
    """Replace the live line: the last line of the terminal, which stays until other output erases it.

    Args:
        text: shortened to what fits beside the suffix.
        suffix: printed in full.
    """
    global _live_line_shown  # noqa: PLW0603  (a process has one terminal, and everything printed there erases the line)
    line = f"  {fit(printable(text), shutil.get_terminal_size().columns - len(suffix) - 4)} {suffix}"
    _live_line_shown = True  # before it is written: Ctrl-C may come in between
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def clear_live_line() -> bool:
    """Erase the live line. Call it before anything else is written to the terminal.

    Returns:
        True if there was one.
    """
    global _live_line_shown  # noqa: PLW0603  (see `draw_live_line`)
    if shown := _live_line_shown:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        _live_line_shown = False
    return shown


def end_interrupted_line() -> None:
    """Begin a new line after Ctrl-C, which the terminal has echoed as `^C`."""
    if not clear_live_line() and sys.stderr.isatty():
        sys.stderr.write("\n")


def cell_width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in {"W", "F"} else 1 for char in text)


def fit(text: str, width: int) -> str:
    """Return the first line of a text, cut to what fits in `width` cells of a terminal."""
    cells, line = 0, text.partition("\n")[0].replace("\t", " ")
    for index, char in enumerate(line):
        cells += cell_width(char)
        if cells > width:
            return line[:index]
    return line


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm a destructive command.

    Args:
        question: the question.
        yes: the user has already confirmed (`-y`).

    Raises:
        UsageError: stdin is not a terminal.
        typer.Exit: the user declined, which was printed; the exit code is 1.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Confirmation needed, but stdin is not a terminal", hint="pass -y to confirm")
    if not typer.confirm(question, err=True):
        say("cancelled: nothing was changed")
        raise typer.Exit(1)


def format_size(size: int) -> str:
    """Return a number of bytes for people, such as `3 B`, `1.2 kB` and `45 MB` (powers of 1000)."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 999.5:
            break
        number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if unit != "B" and number < 9.95 else f"{number:.0f} {unit}"
