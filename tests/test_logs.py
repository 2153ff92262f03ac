"""`tpux logs`: which lines are printed, and what a terminal folds."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal

FOUR = "tpu: {{accelerator: v4-32}}\ncommand: {{cmd: '{script}', grace_period: 1s}}\n"
SCRIPT = (
    'echo begin; [ $TPUX_WORKER != 2 ] || echo only here; echo step 1; printf "10%%\\r20%%\\r100%%\\n";'
    " [ $TPUX_WORKER = 3 ] || echo step 2; echo end"
)


@pytest.fixture
def job(tpux):
    job = tpux.create(FOUR.format(script=SCRIPT.replace("'", "")))
    tpux("wait", job)
    return job


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_a_terminal_folds_the_lines_of_workers_that_are_alike(tpux, job, size):
    terminal = Terminal(tpux, "logs", job, size=size)
    assert terminal.end() == 0
    assert terminal.lines == [
        "[0-3] begin",
        "[2] only here",
        "[0-3] step 1",
        "[0-3] 100%",
        "[0-2] step 2",
        "[0-3] end",
    ]


def test_a_pipe_gets_every_line_of_every_worker(tpux, job):
    printed = tpux("logs", job).stdout
    assert printed.count("begin") == 4
    assert printed.count("10%\r20%\r100%\n") == 4
    assert "-3]" not in printed
    assert tpux("logs", job, "--worker", "1-2", "--grep", "^s.ep [12]$").stdout.splitlines() == [
        *("[1] step 1", "[1] step 2", "[2] step 1", "[2] step 2")
    ]
    assert "--grep [" in tpux("logs", job, "--grep", "[", code=2).stderr
    stamped = tpux("logs", job, "--timestamps", "--worker", "0", "-n", "1").stdout
    assert re.fullmatch(r"\[0\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d end\n", stamped)


@pytest.mark.system
def test_the_first_error(tpux):
    script = "echo fine; [ $TPUX_WORKER != 1 ] || { echo ValueError: bad; echo after; exit 3; }; sleep 1000"
    job = tpux.create(FOUR.format(script=script))
    tpux("wait", job, code=100)
    found = tpux("logs", job, "--first-error")
    assert found.stdout == "[1] ValueError: bad\n[1] after\n"
    assert "the first error is on worker 1" in found.stderr
    assert "names an error" in tpux("logs", job, "--first-error", "--worker", "0", code=2).stderr


def test_follow_begins_with_the_state_and_the_last_lines_on_a_terminal(tpux):
    job = tpux.create("command: {cmd: 'seq 100; sleep 1000', grace_period: 1s}\n")
    tpux.until(lambda: b"100" in tpux.output_so_far(job))
    terminal = Terminal(tpux, "logs", "-f", job, size=(80, 24))
    terminal.until(r"^  attempt 1 … \d")
    shown = [line for line in terminal.lines if "…" not in line]
    assert re.match(r"tpux: job 1 \(job\): running for .*: attempt 1", shown[0])
    assert shown[1:] == [f"[0] {number}" for number in range(81, 101)]
    terminal.type(b"\x03")
    terminal.end()
    tpux("stop", job)
