"""The monitor's screen: a table of the jobs above, the output of the selected one below."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from tpux.api import JobInfo
from tpux.api.text import STATE_COLOURS, cell_width
from tpux_monitor import actions, rows
from tpux_monitor.actions import ACTIONS, Action
from tpux_monitor.lines import Line, Lines
from tpux_monitor.output import files, tail
from tpux_monitor.reader import read
from tpux_monitor.rows import Job

STALE_AFTER = 5.0
"""Seconds beyond the interval after which the jobs shown are marked as old."""
SMALL = (60, 15)
"""Columns and rows of a terminal below which the output is not shown."""
SINCE = {"2": 60.0, "3": 300.0, "4": 900.0, "5": 1800.0, "6": 3600.0}
"""Seconds before now from which on the output is shown, by key."""
Asked = Literal["filter", "columns"]
PLACEHOLDERS: dict[Asked, str] = {
    "filter": "filter: words, state:failed, !word",
    "columns": f"columns, such as {','.join(rows.REQUIRED)},tags; none shows what there is space for",
}
HELP = """\
arrows, j k   choose a job
/  c          filter: words, state:failed, !word; columns
o  z          sort; only failed and stopped jobs
Enter         what `tpux show` and its config say about a job
l             output on all of the screen, and back
f  w  t       follow the output; wrap long lines; times
0  1          the end of the output, its beginning
2 3 4 5 6     output of the last 1, 5, 15, 30, 60 minutes
Tab           output of the next worker
u             jobs of all users, or yours
Space         mark a job, for the four keys below
s  r          stop, resume from the last checkpoint
R  d          rerun from scratch, delete
y             copy the command `tpux logs -f JOB`
Esc           leave the job, the large output, or the filter
q             leave; the jobs are not affected"""


class Question(ModalScreen[bool]):
    """Ask before a job is changed; only `y` means yes."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Static { width: 80%; height: auto; border: round $warning; padding: 0 1; }
    """
    BINDINGS: ClassVar = [("y", "answer(True)"), *((key, "answer(False)") for key in ("n", "escape", "enter", "q"))]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(Text(f"{self._text}\n\ny: yes    n, Enter: no"))

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class Keys(ModalScreen[None]):
    """Show the keys."""

    DEFAULT_CSS = Question.DEFAULT_CSS.replace("Question", "Keys").replace("$warning", "$primary")

    def compose(self) -> ComposeResult:
        """Show the text."""
        yield Static(Text(HELP))

    def on_key(self) -> None:
        """Close with any key."""
        self.dismiss()


class Monitor(App[None]):
    """The live view.

    Args:
        words: the filter.
        interval: seconds between two looks at the jobs.
        readonly: no key changes a job.
        users: show the jobs of all users of the store.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; }
    #head, #rule, #foot { height: 1; }
    #foot { color: $text-muted; }
    #top { height: auto; max-height: 60%; }
    #table { height: auto; max-height: 100%; scrollbar-size: 0 0; }
    #output { height: 1fr; scrollbar-size: 0 0; }
    Monitor.small #top { height: 1fr; max-height: 100%; }
    Monitor.large #top { display: none; }
    Monitor.small #below { display: none; }
    Monitor.small.large #below { display: block; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.shown { display: block; }
    """
    BINDINGS: ClassVar = [
        *(Binding(key, f"move({by})", priority=False) for key, by in (("up", -1), ("k", -1), ("down", 1), ("j", 1))),
        ("pageup", "move(-10)"), ("pagedown", "move(10)"), ("home", "move(-100000)"), ("end", "move(100000)"),
        ("l", "larger"), ("enter", "job"), ("escape", "leave"), ("slash", "ask('filter')"), ("c", "ask('columns')"),
        ("o", "order"), ("z", "failures"), ("w", "wrap"), ("t", "times"), ("f", "follow"), ("tab", "worker"),
        ("y", "copy"), ("q", "quit"),
        *((key, f"period('{key}')") for key in "0123456"), ("space", "mark"), ("u", "users"),
        ("question_mark", "keys"), ("ctrl+z", "suspend_process"),
        *((key, f"act('{key}')") for key in ACTIONS),
    ]  # fmt: skip

    def __init__(self, words: str = "", *, interval: float = 2.0, readonly: bool = False, users: bool = False) -> None:
        super().__init__()
        self._words, self._interval, self._readonly, self._users = words, interval, readonly, users
        self._jobs: list[Job] = []
        self._shown: list[Job] = []
        self._selected = ""
        self._marked: set[str] = set()
        self._period = "0"
        self._order, self._failures, self._wrap, self._follow, self._worker = "newest", False, False, True, 0
        self._read_at = time.monotonic()
        self._problem, self._said = "", ""
        self._asked: Asked = "filter"
        self._columns: tuple[str, ...] = ()
        self._times, self._has_read = False, False
        self._about: tuple[str, list[str]] | None = None

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="head")
        with Vertical(id="top"):
            yield Static(id="columns")
            yield Lines(id="table")
        with Vertical(id="below"):
            yield Static(id="rule")
            yield Lines(id="output")
        yield Input(self._words, id="filter", compact=True)
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Begin to read the jobs."""
        with suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.set_focus(None)
        self.app_resume_signal.subscribe(self, self._paint_all)
        self.call_after_refresh(self._begin)  # the frame is shown before the jobs are read
        self.set_interval(1.0, self._draw_head)

    def _begin(self) -> None:
        self.run_worker(self._read_for_ever())

    def _paint_all(self, _: object) -> None:
        """Paint also what has not changed: the shell has used the terminal meanwhile."""
        for widget in self.screen.query("*").results(Widget):
            widget.refresh()

    async def _read_for_ever(self) -> None:
        while True:
            try:
                self._jobs, self._problem = await asyncio.to_thread(read, users=self._users), ""
                self._read_at, self._has_read = time.monotonic(), True
            except Exception as error:  # noqa: BLE001  shown; the next look may succeed
                self._problem = f"cannot read the jobs: {error}"
            # Not while a question is asked, since what it is about must not move, nor after the screen was taken away.
            if self.query("#table"):
                self.draw()
            await asyncio.sleep(self._interval)

    # --- drawing ----------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw what has changed."""
        if not self.query("#table"):
            return  # the monitor is being left: its widgets are gone
        failed = {"failed", "stopped"}
        jobs = [job for job in self._jobs if rows.matches(job.info, self._words)]
        jobs = [job for job in jobs if job.info.state in failed or not self._failures]
        self._shown = sorted(jobs, key=lambda job: rows.ORDERS[self._order](job.info))
        ids = [job.info.id for job in self._shown]
        self._marked &= {*ids}
        if self._selected not in ids:
            self._selected, self._worker = next(iter(ids), ""), 0
        self._draw_head()
        self._draw_table()
        self._draw_output()

    def _draw_head(self) -> None:
        old = time.monotonic() - self._read_at
        stale = f"  stale {old:.0f} s" if old > self._interval + STALE_AFTER else ""
        words = (f"  /{self._words}" if self._words else "") + ("  failures only" if self._failures else "")
        after = f"{words}{stale}" + (f"  {self._problem}" if self._problem else "")
        infos, space = [job.info for job in self._jobs], self.size.width - cell_width(after)
        title = "tpux monitor  " if cell_width(rows.summary(infos)) + 14 <= space else ""
        text = title + rows.summary(infos, space) + after
        self._set("head", Text(text, style="bold red" if stale or self._problem else "bold", no_wrap=True))
        self._set("foot", Text(self._said or self._keys(), no_wrap=True))

    def _keys(self) -> str:
        """Return the keys that there is space for."""
        keys = ["? keys", "/ filter", "l output", "Enter job"]
        keys += [] if self._readonly else ["s stop", "r resume", "R rerun", "d delete"]
        keys.append("q quit")
        while len("  ".join(keys)) > self.size.width and len(keys) > 2:
            keys.pop(-2 if len(keys) < 6 else 2)
        return "  ".join(keys)

    def _set(self, name: str, text: Text) -> None:
        for static in self.query(f"#{name}").results(Static):
            if static.content != text:
                static.update(text)

    def _draw_table(self) -> None:
        now = time.time()
        cells = [job.cells(now) for job in self._shown]
        widths = rows.layout(cells, self.size.width, self._columns)
        head = rows.line({name: name.upper() for name in rows.COLUMNS}, widths)
        self._set("columns", Text(head, style="dim", no_wrap=True))
        table = self.query_one("#table", Lines)
        number = self._number()
        marks = ["*" if job.info.id in self._marked else " " for job in self._shown]
        lines = [self._row(*each, widths) for each in zip(cells, marks, strict=True)]
        if not lines and self._has_read:
            lines = [((rows.why_empty(self._words, failures=self._failures, count=len(self._jobs)), ""),)]
            self._set("columns", Text())
        table.replace(lines, number)
        if number is not None:
            table.show_line(number)

    def _row(self, cells: dict[str, str], mark: str, widths: dict[str, int]) -> Line:
        text, state = rows.line(cells, widths, mark), cells["state"]
        before, found, after = text.partition(f"  {state}")
        return (before + found[:2], ""), (found[2:], STATE_COLOURS[state]), (after, "")

    def _number(self) -> int | None:
        return next((n for n, job in enumerate(self._shown) if job.info.id == self._selected), None)

    def _job(self) -> Job | None:
        number = self._number()
        return None if number is None else self._shown[number]

    def _draw_output(self) -> None:
        if self._about is not None:
            self._draw_rule(self._about[0])
            self.query_one("#output", Lines).replace([((line, ""),) for line in self._about[1]])
            return
        job, output = self._job(), self.query_one("#output", Lines)
        found = files(job.info.id) if job else {}
        workers = list(found)
        worker = workers[self._worker % len(workers)] if workers else 0
        since = time.time() - SINCE[self._period] if self._period in SINCE else None
        paths = [found[worker]] if found else []
        head = self._period == "1"
        text = [line for path in paths for line in tail(path, since=since, head=head, times=self._times)]
        width = max(1, self.size.width)
        if self._wrap:
            text = [line[at : at + width] for line in text for at in range(0, max(1, len(line)), width)]
        what = f"output, worker {worker} of {len(workers)}" if workers else "no output yet"
        what = f"{int(job.info.id)} {what}" if job else what
        shown = {"0": "", "1": ", its beginning"}
        what += shown.get(self._period) or (f", last {SINCE[self._period] / 60:.0f} min" if since else "")
        follows = ", following" if self._follow else ""
        self._draw_rule(f"{what}{follows}")
        output.replace([((line, ""),) for line in text])
        if self._follow:
            output.scroll_end(animate=False)

    def _draw_rule(self, text: str) -> None:
        rule = f"-- {text} "
        self._set("rule", Text(rule + "-" * max(0, self.size.width - cell_width(rule)), style="dim", no_wrap=True))

    def on_resize(self, event: Resize) -> None:
        """Leave the output out where there is no space for it."""
        self.set_class(event.size.width < SMALL[0] or event.size.height < SMALL[1], "small")
        self.draw()

    # --- keys -------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Choose another job, or scroll the output if it is all that is shown."""
        if self.has_class("large"):
            self._follow = False
            self.query_one("#output", Lines).scroll_relative(y=by, animate=False)
        elif self._shown:
            number = min(max((self._number() or 0) + by, 0), len(self._shown) - 1)
            self._selected, self._worker, self._follow = self._shown[number].info.id, 0, True
        self._said = ""
        self.draw()

    def action_larger(self) -> None:
        """Show the output on all of the screen, or the table again."""
        self._about = None
        self.toggle_class("large")
        self._follow = True
        self.call_after_refresh(self.draw)

    def action_leave(self) -> None:
        """Leave the filter, or the large output."""
        if self.query_one("#filter", Input).has_focus and self._asked == "columns":
            self._close_filter()
            return
        if self.has_class("large"):
            self.action_larger()
            return
        self._words = ""
        self._close_filter()

    def action_job(self) -> None:
        """Show what there is to know about the selected job on all of the screen, or the table again."""
        if self._about is not None:
            self.action_larger()
        elif job := self._job():
            self._about = f"{int(job.info.id)}, at {time.strftime('%H:%M:%S')}", ["..."]
            self.add_class("large")
            self.run_worker(self._show(job.info))

    async def _show(self, job: JobInfo) -> None:
        self.draw()
        text = await asyncio.to_thread(actions.describe, job, self.size.width)
        if self._about is not None:
            self._about = self._about[0], text
            self.query_one("#output", Lines).scroll_home(animate=False)
            self.draw()

    def action_ask(self, asked: Asked) -> None:
        """Ask for a filter, or for columns."""
        self._asked = asked
        box = self.query_one("#filter", Input)
        box.placeholder = PLACEHOLDERS[asked]
        with self.prevent(Input.Changed):
            box.value = self._words if asked == "filter" else ",".join(self._columns)
        box.add_class("shown")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        if self._asked == "filter":
            self._words = event.value
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, or take the columns."""
        if self._asked == "columns":
            columns, problem = rows.columns_of(event.value)
            self._columns, self._said = self._columns if problem else columns, problem
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.set_focus(None)
        self.draw()

    def action_order(self) -> None:
        """Sort by the next order; the same job stays selected."""
        names = list(rows.ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._said = f"sorted by {self._order}"
        self.draw()

    def action_failures(self) -> None:
        """Show only failed and stopped jobs, or all."""
        self._failures = not self._failures
        self.draw()

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self._wrap = not self._wrap
        self.draw()

    def action_times(self) -> None:
        """Begin each line of the output with the time at which it was fetched, or not."""
        self._times = not self._times
        self.draw()

    def action_follow(self) -> None:
        """Follow the output, or stay where it is."""
        self._follow = not self._follow
        self.draw()

    def action_worker(self) -> None:
        """Show the output of the next worker."""
        self._worker += 1
        self.draw()

    def action_period(self, key: str) -> None:
        """Show the end of the output, its beginning, or that of the last minutes."""
        self._period, self._follow = key, key != "1"
        self.draw()
        if key == "1":
            self.query_one("#output", Lines).scroll_home(animate=False)

    def action_mark(self) -> None:
        """Mark the selected job for the keys that change jobs, and go to the next one; or take the mark away."""
        if self._selected:
            self._marked ^= {self._selected}
            self.action_move(1)

    def action_users(self) -> None:
        """Show the jobs of all users, or the own ones, from the next look on."""
        self._users = not self._users
        self._said = "jobs of all users" if self._users else "your jobs"
        self.draw()

    def action_copy(self) -> None:
        """Copy the command that prints the output, by the terminal's own means."""
        if job := self._job():
            command = f"tpux logs -f {int(job.info.id)}"
            self.copy_to_clipboard(command)
            self._said = command
            self.draw()

    def action_keys(self) -> None:
        """Show the keys."""
        self.push_screen(Keys())

    def action_act(self, key: str) -> None:
        """Ask, then change the marked jobs, or the selected one."""
        job, action = self._job(), ACTIONS[key]
        jobs = [job.info for job in self._shown if job.info.id in self._marked] or ([job.info] if job else [])
        if self._readonly or not jobs:
            self._said = "--readonly: no key changes a job" if self._readonly else ""
            self.draw()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._marked.clear()
                self.run_worker(self._carry_out(action, jobs))

        self.push_screen(Question(action.question(jobs)), answered)

    async def _carry_out(self, action: Action, jobs: list[JobInfo]) -> None:
        self._said = f"{action.typed(jobs)} ..."
        self.draw()
        self._said = await asyncio.to_thread(actions.run, action, jobs)
        self.draw()
