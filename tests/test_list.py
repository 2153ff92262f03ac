"""`tpux list`: which jobs it reads, and what a terminal shows of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.startup import fill

from tests.test_terminal import Terminal
from tpux.store import Store

SLEEPS = "job: {{name: {name}}}\ncommand: {{cmd: 'echo up; sleep 1000', grace_period: 1s}}\n"


def store_of(tpux) -> Store:
    return Store(Path(tpux.env["TPUX_HOME"]), tpux.env.get("TPUX_USER"))


def test_only_open_jobs_and_the_newest_others_are_read(tpux):
    store = store_of(tpux)
    fill(store, 40)
    assert [row["id"] for row in tpux.json("list")] == [f"{number:06}" for number in range(11, 41)]
    for number in range(1, 11):  # the first call has read all
        (store.jobs / store.user / f"{number:06}" / "events.jsonl").write_text("torn")
        (store.jobs / store.user / f"{number:06}" / "state.json").unlink()
    listed = tpux("list")
    assert "cannot be read" not in listed.stderr
    assert "(10 older jobs: tpux list --all)" in listed.stderr
    assert [row["id"] for row in tpux.json("list", "--limit", "2")] == ["000039", "000040"]
    assert "job 1 cannot be read" in tpux("list", "--all").stderr


def test_a_job_that_is_open_again_is_shown_however_old(tpux):
    job = tpux.create("command: {cmd: 'exit 1'}\n")
    tpux("wait", job, code=100)
    tpux.until_done()
    fill(store_of(tpux), 31)
    assert job not in [row["id"] for row in tpux.json("list")]
    tpux("rerun", job)
    assert job in [row["id"] for row in tpux.json("list")] or tpux.show(job)["state"] == "failed"
    tpux("wait", job, code=100)


def test_a_job_of_an_older_tpux_is_found(tpux):
    job = tpux.create(SLEEPS.format(name="old"))
    marks = store_of(tpux).shared / "open" / store_of(tpux).user
    for mark in marks.iterdir():
        mark.unlink()
    fill(store_of(tpux), 31)
    assert job in [row["id"] for row in tpux.json("list")]
    tpux("stop", job)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 24)])
def test_no_row_is_wrapped_and_the_first_columns_are_never_cut(tpux, size):
    name = "a-rather-long-name-of-a-job-that-ends-in-lr-3e-4"
    failed = tpux.create(
        f"job: {{name: {name}}}\ntpu: {{accelerator: v4-16}}\ncommand: {{cmd: 'echo {'why ' * 30}; exit 3'}}\n"
    )
    tpux("wait", failed, code=100)
    running = tpux.create(SLEEPS.format(name="short") + "tpu: {accelerator: v4-16}\n")
    tpux.until(lambda: b"up" in tpux.output_so_far(running))
    terminal = Terminal(tpux, "list", size=size)
    assert terminal.end() == 0
    head, first, second = terminal.lines
    assert head.split()[:4] == ["ID", "NAME", "STATE", "FOR"]
    assert "STAGE" not in head, "empty columns vanish"
    assert re.match(r"1   ?\S+ +failed +\d+[smh]", first)
    assert re.match(r"2   ?short +running +\d+[smh]", second)
    assert ("ZONE" in head) is False
    assert ("TPU" in head) == (size[0] > 40)
    assert first.split()[1] == (name if size[0] == 160 else first.split()[1])
    assert first.split()[1].endswith("3e-4")
    tpux("stop", running)


def test_the_columns_are_chosen(tpux):
    tpux.create(SLEEPS.format(name="x"))
    assert tpux("list", "-c", "state,id,stage").stdout.splitlines()[0].split() == ["STATE", "ID", "STAGE"]
    refused = tpux("list", "-c", "id,stat", code=2).stderr
    assert "unknown column 'stat'" in refused
    assert "state" in refused
    tpux("stop", "1")


def test_watch_writes_only_what_changes(tpux):
    jobs = [tpux.create(SLEEPS.format(name=f"job-{number}")) for number in (1, 2)]
    for job in jobs:
        tpux.until(lambda job=job: b"up" in tpux.output_so_far(job))
    terminal = Terminal(tpux, "list", "-w", "-c", "id,name,state", size=(80, 24))
    terminal.until(r"^2 +job-2 +running")
    before = len(terminal.written)
    tpux("stop", "2")
    terminal.until(r"^2 +job-2 +stopped")
    assert b"job-1" not in terminal.written[before:]
    assert [line.split() for line in terminal.lines] == [
        ["ID", "NAME", "STATE"],
        ["1", "job-1", "running"],
        ["2", "job-2", "stopped"],
    ]
    terminal.type(b"\x03")
    terminal.end()
    assert "Traceback" not in terminal.text
    assert "needs a terminal" in tpux("list", "-w", code=2).stderr
    tpux("stop", "1")


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, False), ({"CLICOLOR_FORCE": "1"}, True), ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_in_a_pipe(tpux, env, coloured):
    fill(store_of(tpux), 1)
    tpux.env = {name: value for name, value in tpux.env.items() if name != "NO_COLOR"} | env
    assert ("\x1b[" in tpux("list").stdout) is coloured
