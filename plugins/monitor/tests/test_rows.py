"""Which jobs the monitor shows, and what of them fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux import Progress
from tpux.api import JobInfo
from tpux.api.text import cell_width
from tpux_monitor.output import last_line, tail
from tpux_monitor.rows import ORDERS, Job, layout, line, matches, summary

INFO = JobInfo(
    id="000014", user="ann", name="llama-lr3e-4", state="running", why="", hint="", ended=False, done=False, attempt=3,
    stage=1, accelerator="v4-32", zone="us-central2-b", workers=4, machines="tpux-14", failure=None,
    since=100.0, created_at=50.0, updated_at=100.0, directory=Path("/"), output_dir="", tags=("x",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [("", True), ("llama", True), ("14", True), ("4", True), ("1", False), ("state:running v4", False),
     ("state:running llama", True), ("!llama", False), ("!state:failed", True),
     ("tpu:v4", True), ("zone:eu", False), ("tag:x", True), ("!tag:x", False), ("tag:y", False)],
)  # fmt: skip
def test_a_filter(words, found):
    assert matches(INFO, words) is found


def test_the_newest_active_job_comes_first():
    ended = replace(INFO, id="000020", state="failed", ended=True)
    newer = replace(INFO, id="000016", name="a")
    assert [job.id for job in sorted([ended, INFO, newer], key=ORDERS["newest"])] == ["000016", "000014", "000020"]
    assert summary([ended, INFO, newer]) == "3 jobs: 2 running, 1 failed"


@given(
    width=st.integers(20, 200),
    names=st.lists(st.text("ab日-", min_size=1, max_size=70), min_size=1, max_size=5),
    why=st.text(max_size=200),
)
def test_a_row_is_as_wide_as_the_terminal_at_most(width, names, why):
    cells = [Job(replace(INFO, name=name, why=why, state="pending")).cells(now=200.0) for name in names]
    widths = layout(cells, width)
    assert {"id", "name", "state", "for"} <= {*widths}
    least = 1 + sum(wide for name, wide in widths.items() if name != "name") + 8 + 2 * (len(widths) - 1)
    for row in cells:
        assert cell_width(line(row, widths)) <= max(width, least)


def test_a_narrow_terminal_shortens_names_in_their_middle_before_it_leaves_progress_out():
    info = replace(
        INFO, name="llama-large-batch-lr-3e-4", progress=Progress(step=4200, total=10000), zone="us-central2-b"
    )
    cells = [Job(info, "step 4200 of 10000 loss 2.31").cells(now=200.0)]
    wide, narrow = layout(cells, 160), layout(cells, 80)
    assert [*wide] == ["id", "name", "state", "for", "tpu", "zone", "workers", "try", "progress", "tags", "last line"]
    assert [*narrow] == ["id", "name", "state", "for", "tpu", "try", "progress", "last line"]
    assert "llama-…r-3e-4" in line(cells[0], layout(cells, 74))
    assert [*layout(cells, 80, ("name", "tags", "zone"))] == ["name", "tags", "zone"]
    assert "progress" not in layout(cells, 50)


def test_the_counts_that_matter_stay_on_a_narrow_terminal():
    states = ("succeeded", "stopped", "pending", "recovering", "failed", "running")
    jobs = [replace(INFO, state=state) for state in states]
    assert summary(jobs) == "6 jobs: 1 running, 1 failed, 1 recovering, 1 pending, 1 stopped, 1 succeeded"
    assert summary(jobs, 50) == "6 jobs: 1 running, 1 failed, 1 recovering, …"


def test_the_end_of_a_file_without_what_controls_a_terminal(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000 + b"\nfirst\n 10%\r 50%\r100%\r\n\x1b[2Jlast\n\n")
    lines = tail(path, 100)
    assert lines[:2] == ["first", "100%"]
    assert "\x1b" not in "".join(lines)
    assert last_line(path).endswith("last")
    assert last_line(tmp_path / "none") == ""
