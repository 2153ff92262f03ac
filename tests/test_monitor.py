"""`tpux monitor`: its screen, its keys, and the terminal that it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import pytest

from tests.test_terminal import Terminal
from tpux_monitor.app import Monitor

LOOP = "command: {cmd: 'echo step 7; exec sleep 300'}\njob: {name: llama}\n"


@pytest.fixture
def job(tpux, monkeypatch):
    """A running job, in whose store the monitor also runs within this process."""
    for name in ("HOME", "TPUX_HOME"):
        if name in tpux.env:
            monkeypatch.setenv(name, tpux.env[name])
    made = tpux.create(LOOP)
    tpux.until(lambda: tpux.show(made)["state"] == "running")
    logs = tpux.directory(made) / "logs"
    tpux.until(lambda: any(b"step 7" in path.read_bytes() for path in logs.rglob("command_worker_0.log")))
    yield made
    tpux("delete", "-y", made)


def drive(steps, size=(80, 24), **options) -> None:
    """Run the monitor on a terminal of a size that is not there, and call `steps` with it."""

    async def run() -> None:
        app = Monitor(interval=0.25, **options)
        async with app.run_test(size=size) as pilot:
            await steps(app, pilot)

    asyncio.run(run())


def text(app) -> str:
    """Return the lines of the screen."""
    width, height = app.size
    rows = [app.screen._compositor.render_strips()[y] for y in range(height)]
    return "\n".join("".join(segment.text for segment in row).rstrip()[:width] for row in rows)


async def until(app, pilot, *words: str) -> None:
    for _ in range(600):
        await pilot.pause(0.1)
        if all(word in text(app) for word in words):
            return
    raise AssertionError(f"no {words} in\n{text(app)}")


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 12)])
def test_the_screen(job, size):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "1 job: 1 running", "llama", "running")
        if size == (40, 12):
            assert "following" not in text(app), "there is no space for it"
            await pilot.press("l")
        await until(app, pilot, "output, worker 0 of 1, following", "step 7")
        if size == (40, 12):
            await pilot.press("l")
        await pilot.resize_terminal(100, 30)
        await until(app, pilot, "LAST LINE")

    drive(steps, size)


def test_a_job_is_stopped_only_after_a_yes(tpux, job):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "running")
        await pilot.press("s")
        await until(app, pilot, f"stop job {int(job)} (llama), running, which holds")
        await pilot.press("enter")
        await pilot.pause(0.5)
        assert tpux.show(job)["state"] == "running"
        await pilot.press("s", "y")
        await until(app, pilot, "stopped", f"job {int(job)}")

    drive(steps, (120, 24))
    assert tpux.show(job)["state"] == "stopped"


def test_several_jobs_are_marked_and_stopped(tpux, job):
    other = tpux.create(LOOP.replace("llama", "other"))
    tpux.until(lambda: tpux.show(other)["state"] == "running")

    async def steps(app, pilot) -> None:
        await until(app, pilot, "2 jobs: 2 running")
        await pilot.press("space", "space")
        await until(app, pilot, f"*{int(job)} ", f"*{int(other)} ")
        await pilot.press("s")
        await until(
            app, pilot, "stop 2 jobs?", f"job {int(job)} (llama), running", f"job {int(other)} (other), running"
        )
        await pilot.press("y")
        await until(app, pilot, "2 jobs: 2 stopped")
        assert f"*{int(job)} " not in text(app)

    drive(steps, (120, 24))
    assert tpux.show(other)["state"] == tpux.show(job)["state"] == "stopped"
    tpux("delete", "-y", other)


def test_which_part_of_the_output_is_shown(tpux, job):
    [log] = (tpux.directory(job) / "logs").rglob("command_worker_0.log")

    async def steps(app, pilot) -> None:
        await until(app, pilot, "step 7")
        await pilot.press("2")
        await until(app, pilot, "worker 0 of 1, last 1 min, following", "step 7")
        long_ago = time.time() - 120
        log.with_suffix(".times").write_text(f"{long_ago} 0\n")
        os.utime(log, (long_ago, long_ago))
        await pilot.pause(0.5)
        assert "step 7" not in "\n".join(text(app).split("\n")[12:])
        await pilot.press("3")
        await until(app, pilot, "last 5 min", "step 7")
        await pilot.press("1")
        await until(app, pilot, "its beginning", "step 7")
        await pilot.press("0")
        await until(app, pilot, "worker 0 of 1, following", "step 7")

    drive(steps)


def test_the_columns_are_chosen(tpux, job):
    tpux("tag", job, "+baseline")

    async def steps(app, pilot) -> None:
        await until(app, pilot, "LAST LINE", "step 7")
        await pilot.press("c", *"id,name,tags,nonsense", "enter")
        await until(app, pilot, "no column 'nonsense'; there are id, name,", "LAST LINE")
        await pilot.press("c", *"id,name,tags", "enter")
        await until(app, pilot, "ID  NAME   TAGS", f"{int(job)}   llama  baseline")
        assert "LAST LINE" not in text(app)
        await pilot.press("c", *["backspace"] * 20, "escape")
        await until(app, pilot, "ID  NAME   TAGS")
        await pilot.press("c", *["backspace"] * 20, "enter")
        await until(app, pilot, "STATE", "LAST LINE")

    drive(steps)


def test_enter_shows_the_job_with_its_config(tpux, job):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "step 7")
        await pilot.press("enter")
        await until(
            app, pilot, f"$ tpux show {int(job)}", "attempts: ", f"$ tpux config show {int(job)}", "exec sleep 300"
        )
        assert "LAST LINE" not in text(app)
        await pilot.press("escape")
        await until(app, pilot, "LAST LINE", "step 7")

    drive(steps, (100, 80))


def test_lines_of_output_with_their_times(tpux, job):
    [log] = (tpux.directory(job) / "logs").rglob("command_worker_0.log")

    async def steps(app, pilot) -> None:
        await until(app, pilot, "step 7")
        first, second = (time.mktime((2026, 1, 2, hour, 4, 5, 0, 0, -1)) for hour in (3, 14))
        log.write_text("step 7\nstep 8\nstep 9\n")
        log.with_suffix(".times").write_text(f"{first} 0\n{second} 14\n")
        await pilot.press("t")
        await until(app, pilot, "\n03:04:05 step 7\n03:04:05 step 8\n14:04:05 step 9")
        await pilot.press("t")
        await until(app, pilot, "\nstep 7\nstep 8\nstep 9")

    drive(steps)


def test_a_readonly_monitor_changes_nothing(tpux, job):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "running")
        await pilot.press("d")
        await until(app, pilot, "--readonly: no key changes a job")

    drive(steps, readonly=True)
    assert tpux.show(job)["state"] == "running"


def test_a_filter_is_typed_and_left(job):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "running")
        await pilot.press("slash", *"!llama", "enter")
        await until(app, pilot, "no output yet", "no job matches '!llama', of 1; Esc ends the filter")
        assert "running  " not in text(app).partition("\n")[2]
        await pilot.press("escape")
        await until(app, pilot, "step 7")
        await pilot.press("z")
        await until(app, pilot, "1 running  failures only", "no failed or stopped job, of 1; z shows the others")
        await pilot.press("z")
        await until(app, pilot, "step 7")

    drive(steps)


def test_old_data_are_marked(job, monkeypatch):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "running")
        app._read_at -= 60

        def hang(**_: object) -> None:
            raise OSError("no answer")

        monkeypatch.setattr("tpux_monitor.app.read", hang)
        app._interval = 60
        await until(app, pilot, "cannot read the jobs: no answer")
        app._read_at -= 60
        app._draw_head()
        await until(app, pilot, "stale")

    drive(steps, (120, 24))


def test_a_look_that_ends_as_the_monitor_is_left(job):
    async def steps(app, pilot) -> None:
        await until(app, pilot, "running")
        await app.screen.remove_children()
        app.draw()

    drive(steps)


def test_once_prints_text(tpux, job):
    printed = tpux("monitor", "--once")
    assert "1 job: 1 running" in printed.stderr
    assert printed.stdout.splitlines()[1].split()[1:3] == ["llama", "running"]
    assert "no job matches 'state:failed'" in tpux("monitor", "--once", "--filter", "state:failed").stderr
    refused = tpux("monitor", code=2)
    assert "tpux monitor --once" in refused.stderr


@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_the_terminal_is_left_as_it_was(tpux, job, end):
    terminal = Terminal(tpux, "monitor", size=(80, 24))
    terminal.until("step 7")
    if end == "q":
        terminal.type(b"q")
    else:
        os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() == 0
    assert not terminal.screen.mode & {1000 << 5, 1003 << 5}, "it no longer reports the mouse"
    assert terminal.screen.cursor.hidden is False


@pytest.mark.system
@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
def test_a_resize_and_ctrl_z(tpux, job, size):
    """A shell on a terminal, which exports its size: Ctrl-Z gives the screen back to it, and `fg` the monitor."""
    terminal = Terminal(tpux, size=size, command=("bash", "--norc", "--noprofile", "-i"))
    terminal.type("export COLUMNS={} LINES={}\n".format(*size).encode())  # as `eval $(resize)` does
    terminal.type(f"PS1='$ '; {sys.executable} -m tpux monitor\n".encode())
    terminal.until("1 job: 1 running")
    terminal.resize(100, 30)
    terminal.screen.resize(30, 100)
    terminal.until("following")  # in a small terminal only once the new size has been seen
    terminal.until("step 7")
    terminal.type(b"\x1a")
    terminal.until(r"Stopped")
    assert terminal.screen.cursor.hidden is False
    terminal.type(b"echo in the sh''ell\n")
    terminal.until("^in the shell")
    terminal.screen.erase_in_display(2)  # the emulator has no alternate screen: the frame would still be there
    terminal.type(b"fg; echo; echo le''ft\n")
    terminal.until("following")  # which has not changed
    terminal.until("1 job: 1 running")
    terminal.type(b"q")
    terminal.until("^left")
    terminal.type(b"exit\n")
    terminal.end()
