"""How far a program has come, as plugins say that its output says."""

from __future__ import annotations

import pytest

from tpux import Progress, hookimpl
from tpux.lifecycle.progress import BATCH, WRITE_EVERY, ProgressReader, final_progress
from tpux.lifecycle.turn import Turn
from tpux.store import progress as stored
from tpux_testing.sandbox import Sandbox


def test_what_people_read() -> None:
    assert str(Progress(1200, 3, "0.31", rate=2.14)) == "step 1200, epoch 3, loss 0.31, 2.1 steps/s"
    assert str(Progress(7, rate=0.2)) == "step 7, 5.0 s/step"
    assert str(Progress(7, compiling=True, rate=3.0)) == "compiling, step 7"


class Output:
    """A running job whose output the test writes; a plugin reads the lines `step N`, `loss N` and `broken`."""

    def __init__(self, turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn, self.now, self.reader = turn, 1000.0, ProgressReader()
        self.log = turn.record.output_log(1, 0)
        self.log.write_text("")
        monkeypatch.setattr(turn.clock, "monotonic", lambda: self.now)

    def write(self, text: str, seconds: float = WRITE_EVERY, *, news: bool = True) -> Progress:
        self.now += seconds
        with self.log.open("a") as file:
            file.write(text)
        self.reader.update(self.turn, news=news)
        return stored.load(self.turn.record.directory, self.turn.state)[0]


class Reader:
    @hookimpl
    def progress(self, lines: list[str]) -> Progress | None:
        if "broken" in lines:
            raise ValueError("it is broken")
        words = [line.split() for line in lines]
        steps = [int(each[1]) for each in words if each[:1] == ["step"]]
        losses = [each[1] for each in words if each[:1] == ["loss"]]
        if not steps and not losses:
            return None
        return Progress(steps[-1] if steps else None, loss="".join(losses[-1:]), first_step=min(steps, default=None))


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch):
    with Sandbox() as sandbox:
        sandbox.plugins.add("progress", Reader())
        running = sandbox.start({"command": {"cmd": "exec sleep 100", "grace_period": 0}})
        running.until(lambda state: state.run.running)
        yield Output(running.controller.begin(), monkeypatch)


def test_progress_is_written_at_most_every_five_seconds_and_only_after_output(output: Output) -> None:
    assert output.write("step 10\n", 0).step == 10
    assert output.write("step 20\n", WRITE_EVERY / 2).step == 10
    assert output.write("step 30\n", WRITE_EVERY / 2, news=False).step == 30, "due since the last news"
    assert output.write("step 40\n", 2 * WRITE_EVERY, news=False).step == 30, "nothing new"
    assert output.write("step 90\n", 60).rate == pytest.approx(60 / 70), "since the second read"
    assert output.write("step 5\n", 10) == Progress(5, first_step=10), "an evaluation has begun"
    assert output.write("step 15\n", 10) == Progress(15, rate=1.0, first_step=10)
    output.turn.record.directory.joinpath(stored.FILE).write_text("{")
    assert stored.load(output.turn.record.directory, output.turn.state)[0] == Progress()


def test_a_line_is_read_when_it_is_complete_and_what_is_known_stays(output: Output) -> None:
    assert output.write("step 1") == Progress()
    assert output.write("2\rstep 13").step == 12
    assert output.write("\nloss 0.5\n") == Progress(13, loss="0.5", first_step=12)
    assert output.write("nothing\n") == Progress(13, loss="0.5", first_step=12)


def test_a_plugin_that_fails_is_reported_once_and_ignored(output: Output) -> None:
    assert output.write("step 1\n").step == 1
    for _ in range(2):
        assert output.write("broken\n").step == 1
    assert output.write("step 2\n").step == 2
    report = "plugin progress failed in progress: ValueError: it is broken; continuing without it"
    assert (output.turn.record.logs / "tpu.log").read_text().count(report) == 1


def test_a_long_traceback_does_not_hide_how_far_an_attempt_came(output: Output) -> None:
    output.write("step 1\nloss 0.5\nstep 20\n")
    with output.log.open("a") as file:
        file.write('  File "train.py", line 9, in call\n' * (BATCH // 10) + "loss nan\n")
    assert final_progress(output.turn) == (Progress(20, loss="nan", first_step=1), 0)
    output.reader = ProgressReader()  # of a new supervisor
    assert output.write("").loss == "nan"
    assert final_progress(output.turn) == (Progress(20, loss="nan", first_step=1), 0)


def test_the_last_line_of_an_attempt_counts_without_its_end(output: Output) -> None:
    output.write("step 1\nstep 2")
    assert final_progress(output.turn) == (Progress(2, first_step=1), 0)
