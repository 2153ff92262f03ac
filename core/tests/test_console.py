"""Text of programs, plugins and clouds reaches a terminal without its control characters."""

import io
import json
import sys
from contextlib import suppress

import pytest

from tpux import console

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.1 µs ✓", "loss 0.1 µs ✓"),
        (f"a{CLIPBOARD}b", "ab"),
        ("a\x1b]52;c;eA==\x1b\\b", "ab"),
        ("\x1b[31mred\x1b[0m \x1b[2Jcleared", "red cleared"),
        ("\x9b2Jcleared \x9d52;c;eA==\x9cset", "cleared set"),
        ("an unfinished \x1b]52;c;", r"an unfinished \x1b]52;c;"),
        ("\x1b\x1b[31mc", r"\x1bc"),
        ("bell\x07 nul\x00 del\x7f back\x08", r"bell\x07 nul\x00 del\x7f back\x08"),
        ("10%\r20%\n", "10%\\x0d20%\n"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\u202egnp.exe \u2066x\u2069", r"\u202egnp.exe \u2066x\u2069"),
        ("a byte that is no UTF-8: \udc9b", r"a byte that is no UTF-8: \udc9b"),
    ],
)
def test_control_characters_are_removed_or_escaped(text, shown):
    assert console.printable(text) == shown
    assert console.printable(shown) == shown


def test_every_way_to_print_removes_them(capfd):
    console.say(f"a{CLIPBOARD}b")
    console.echo(f"a{CLIPBOARD}b\x9b2J")
    console.emit({"why": f"{CLIPBOARD}\x9b2J\x7f\udc9b"})
    out, err = capfd.readouterr()
    assert err == "tpux: ab\n"
    first, _, data = out.partition("\n")
    assert first == "ab"
    assert json.loads(data) == {"why": f"{CLIPBOARD}\x9b2J\x7f\udc9b"}, "JSON escapes, and loses nothing"
    assert not {char for char in out if char != "\n" and (char < " " or "\x7f" <= char <= "\x9f")}


@pytest.mark.parametrize("after", range(1, 5))
def test_ctrl_c_at_any_moment_leaves_no_live_line(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Drawing and erasing it are two calls each: to write, and to flush."""

    class Terminal(io.StringIO):
        calls = 0

        def _count(self) -> None:
            self.calls += 1
            if self.calls == after:
                raise KeyboardInterrupt

        def write(self, text: str) -> int:
            self._count()
            return super().write(text)

        def flush(self) -> None:
            self._count()

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with suppress(KeyboardInterrupt):
        console.draw_live_line("running", "… 1 s")
        console.clear_live_line()
    assert terminal.calls == after, "Ctrl-C was pressed"
    console.end_interrupted_line()
    assert terminal.getvalue().endswith("\r\x1b[K")
