from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.steps import Put, Result, Sh, Step, dry_run, put, sh
from tpux.remote import steps
from tpux.remote.steps import ReplayLog, StepRunner

if TYPE_CHECKING:
    from conftest import Here, HereHost

HEADER = "== attempt 1, try 1: setup venv =="
fewer = settings(max_examples=min(settings.default.max_examples // 2, 60))  # each runs bash
StepsOf = Callable[[], Generator[Step, Result, object]]


def install() -> Generator[Step, Result, str]:
    """Scripts, each of which is counted, and files, one of which the script after it removes."""
    arch = yield sh("echo arch >>count; uname -m", example="x86_64")
    yield put(b"numpy\n", "requirements.txt")
    yield put(b"secret\n", "token")
    yield sh("echo pip >>count; rm token\nprintf 'Collecting ...\\nno newline at the end'")
    code = yield sh("echo look >>count; exit 3", may_fail=True)
    return f"{arch.text} {code.code}"


def runner_of(
    here: Here, steps: StepsOf = install, host: HereHost | Interrupted | None = None, clock: ManualClock | None = None
) -> StepRunner:
    log = ReplayLog(here.home.parent / "venv_worker_0.log", HEADER)
    return StepRunner(host or here.host, steps(), lambda number, _: here.run(f"setup-venv-1-{number}"), log, clock)


def log_of(here: Here) -> str:
    return (here.home.parent / "venv_worker_0.log").read_text()


def finish(here: Here, runner: StepRunner) -> StepRunner:
    here.until(lambda: runner.advance(1.0))
    return runner


def arch(here: Here) -> str:
    return here.host.run("uname -m").text


def check() -> Generator[Step, Result, None]:
    yield sh("echo look >>count; echo ready; test ! -e broken")
    yield sh("echo second >>count")


def at_once(here: Here, host: HereHost | Interrupted | None = None) -> StepRunner:
    log = ReplayLog(here.home.parent / "venv_worker_0.log", HEADER)
    return StepRunner(host or here.host, check(), lambda number, _: here.run(f"check-{number}"), log, at_once=True)


def test_the_first_script_of_a_check_is_no_run_of_its_own(here: Here) -> None:
    assert finish(here, at_once(here)).failed is None
    assert (here.home / "count").read_text() == "look\nsecond\n"
    assert not here.file(here.run("check-1"), "started").exists()
    assert here.file(here.run("check-2"), "started").exists()
    assert log_of(here).splitlines()[:3] == [HEADER, "$ echo look >>count; echo ready; test ! -e broken", "ready"]


def test_a_check_that_fails_at_once(here: Here) -> None:
    (here.home / "broken").touch()
    failed = finish(here, at_once(here)).failed
    assert failed is not None
    assert failed[1] == Result(1, b"ready\n")
    assert (here.home / "count").read_text() == "look\n"
    assert log_of(here).endswith("ready\nexit 1\n")


def test_a_check_that_does_not_end_at_once_is_a_run(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "AT_ONCE", 0.001)
    monkeypatch.setattr(here.host, "path", f"{here.home}/bin:{here.host.path}")
    (here.home / "bin").mkdir()
    (here.home / "bin/timeout").write_text("#!/bin/sh\nexit 124\n")
    (here.home / "bin/timeout").chmod(0o755)
    assert finish(here, at_once(here)).failed is None
    assert here.file(here.run("check-1"), "started").exists()
    assert (here.home / "count").read_text() == "look\nsecond\n"


def test_running_steps(here: Here) -> None:
    runner = finish(here, runner_of(here))
    assert (runner.failed, runner.value, runner.run) == (None, f"{arch(here)} 3", None)
    assert (here.home / "requirements.txt").read_text() == "numpy\n"
    assert (here.home / "requirements.txt").stat().st_mode & 0o777 == 0o600
    assert log_of(here).splitlines() == [
        HEADER,
        "$ echo arch >>count; uname -m",
        arch(here),
        "put requirements.txt",
        "put token",
        "$ echo pip >>count; rm token ...",
        "Collecting ...",
        "no newline at the end",
        "$ echo look >>count; exit 3",
        "exit 3",
    ]


@dataclass
class Interrupted:
    """A host whose supervisor dies or whose connection breaks at these calls, before or after they are done."""

    host: HereHost
    cuts: Iterator[str]
    worker: object = field(default=None)

    def __post_init__(self) -> None:
        self.worker = self.host.worker

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            cut = next(self.cuts, "")
            if cut == "before":
                raise HostUnreachableError("cut")
            answer = getattr(self.host, name)(*args, **more)
            if cut:
                raise HostUnreachableError("cut") if cut == "after" else KeyboardInterrupt
            return answer

        return call


def test_a_file_that_the_worker_cannot_store_fails_the_step(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise TpuxError("put requirements.txt: No space left on device", where="worker 0")

    monkeypatch.setattr(here.host, "put", full)
    runner = runner_of(here)
    while not runner.advance(20.0):
        pass
    assert runner.failed is not None
    step, result = runner.failed
    assert (isinstance(step, Put), result.code) == (True, 1)
    said, disks = result.text.splitlines()
    assert said == "put requirements.txt: No space left on device"
    assert disks.startswith("tpux: a disk of worker 0 was full (now /"), "this machine's disks are not"
    assert "put requirements.txt: put requirements.txt: No space left" in log_of(here)


@fewer
@given(cuts=st.lists(st.sampled_from(["", "before", "after", "death"]), max_size=12))
def test_interruptions_start_and_log_nothing_twice(here: Here, cuts: list[str]) -> None:
    here.host.run("rm -rf .tpux count requirements.txt ../venv_worker_0.log")
    host = Interrupted(here.host, iter(cuts))
    runner = runner_of(here, host=host)
    while True:
        try:
            if runner.advance(20.0):
                break
        except HostUnreachableError:
            continue
        except KeyboardInterrupt:
            runner = runner_of(here, host=host)
    assert (runner.failed, runner.value) == (None, f"{arch(here)} 3")
    assert (here.home / "count").read_text() == "arch\npip\nlook\n"
    assert (here.home / "requirements.txt").exists()
    assert not (here.home / "token").exists(), "the script has removed it"
    logged = log_of(here)
    (here.home.parent / "venv_worker_0.log").unlink()
    finish(here, runner_of(here))
    assert logged == log_of(here)


def test_a_file_is_not_copied_again_once_the_script_after_it_was_started(here: Here) -> None:
    def steps() -> Generator[Step, Result, None]:
        yield put(b"1\n", "kept")
        yield put(b"secret\n", "token")
        yield sh("rm token")
        yield sh("until [ -e go ]; do sleep 0.02; done")
        yield put(b"last\n", "last")

    def until_the_last_script_runs() -> StepRunner:
        runner = runner_of(here, steps)
        here.until(lambda: not runner.advance(0.05) and runner.run == here.run("setup-venv-1-4"))
        return runner

    until_the_last_script_runs()
    runner = until_the_last_script_runs()  # a new supervisor
    assert not (here.home / "token").exists()
    (here.home / "go").touch()
    assert finish(here, runner).failed is None
    assert (here.home / "last").read_text() == "last\n"
    logged = log_of(here)
    (here.home / "last").unlink()
    assert finish(here, runner_of(here, steps)).failed is None
    assert (here.home / "last").exists(), "no script follows it, so none has removed it"
    assert log_of(here) == logged


def test_a_file_is_copied_again_if_the_script_after_it_was_not_started(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(here, runner_of(here))
    here.host.run("rm -r .tpux count requirements.txt")  # as on a machine that was made again

    def full(*_: object) -> None:
        raise TpuxError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(here.host, "put", full)
        runner = finish(here, runner_of(here))
        assert runner.failed is not None
        assert runner.failed[0] == put(b"numpy\n", "requirements.txt")
    assert finish(here, runner_of(here)).failed is None
    assert (here.home / "requirements.txt").exists()


def test_a_failed_step_ends_the_steps(here: Here) -> None:
    reached = []

    def steps() -> Generator[Step, Result, None]:
        try:
            yield sh("echo no; exit 4")
            reached.append("the step after it")
        finally:
            reached.append("its end")

    runner = finish(here, runner_of(here, steps))
    assert runner.failed is not None
    step, result = runner.failed
    assert isinstance(step, Sh)
    assert result == Result(4, b"no\n")
    assert reached == ["its end"]


def test_a_long_step_does_not_block(here: Here) -> None:
    runner = runner_of(here, lambda: iter_of(sh("until [ -e go ]; do sleep 0.02; done; echo went")))
    assert not runner.advance(0.05)
    assert runner.run == here.run("setup-venv-1-1")
    assert not runner.advance(0.05)
    (here.home / "go").touch()
    assert finish(here, runner).failed is None
    assert log_of(here).endswith("\nwent\n")


@dataclass
class ManualClock:
    """A clock that stands still until a test moves it."""

    at: float = 0.0

    def monotonic(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.monotonic()

    now = monotonic

    def sleep(self, seconds: float) -> None:
        raise AssertionError("no code under test sleeps")

    wait = None


@pytest.mark.parametrize(("on_term", "code"), [("sys.exit(7)", 7), ("sys.exit(0)", 143)])
def test_a_step_that_takes_too_long(here: Here, on_term: str, code: int) -> None:
    step, clock = Sh(here.stubborn(on_term), timeout=3600), ManualClock()
    runner = runner_of(here, lambda: iter_of(step), clock=clock)
    here.until(lambda: not runner.advance(0.05) and "\nset\n" in log_of(here))
    clock.at = 3601
    here.until(lambda: runner.advance(0.05))
    assert runner.failed == (step, Result(code, b"set\nit took longer than 3600 s and was ended\n"))
    logged = log_of(here)
    assert logged.endswith(f"set\nit took longer than 3600 s and was ended\nexit {code}\n")
    assert finish(here, runner_of(here, lambda: iter_of(step))).failed == runner.failed
    assert log_of(here) == logged


def test_a_step_that_takes_too_long_and_ignores_sigterm(here: Here) -> None:
    step, clock = Sh(here.stubborn("None"), timeout=3600), ManualClock()
    runner = runner_of(here, lambda: iter_of(step), clock=clock)
    here.until(lambda: not runner.advance(0.05) and "\nset\n" in log_of(here))
    clock.at = 3601
    assert not runner.advance(0.05)
    assert not runner.advance(0.05)
    assert here.pids("signal"), "it has time to end"
    clock.at += steps.GRACE + 1
    here.until(lambda: runner.advance(0.05))
    assert runner.failed is not None
    assert runner.failed[1].code == 137


def test_a_step_that_sigkill_does_not_end_fails_even_if_it_may_fail(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(steps, "stop", lambda *_, signal, reason: len([sent.append(signal), reason]) - 1)
    step, clock = Sh("echo set; sleep 100", timeout=3600, may_fail=True), ManualClock()
    runner = runner_of(here, lambda: iter_of(step), clock=clock)
    here.until(lambda: not runner.advance(0.05) and "\nset\n" in log_of(here))
    clock.at = 3601
    for seconds in (0, steps.GRACE + 1, steps.KILL_TIMEOUT - 1):
        clock.at += seconds
        assert not runner.advance(0.05)
        assert not runner.advance(0.05)
    assert sent[-1] == "KILL"
    clock.at += 2
    here.until(lambda: runner.advance(0.05))
    problem = b"it took longer than 3600 s, and SIGKILL has not ended 1 process(es)\n"
    assert runner.failed == (step, Result(steps.LOST, b"set\n" + problem))


def test_a_lost_step_fails_even_if_it_may_fail(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SILENCE", 0.0)
    runner = runner_of(here, lambda: iter_of(sh("sleep 100", may_fail=True)))
    assert not runner.advance(0.05)
    assert runner.run is not None
    here.host.run(f"kill -9 {here.runner(runner.run)}")
    assert finish(here, runner).failed is not None
    assert runner.failed is not None
    assert runner.failed[1] == Result(steps.LOST, b"its runner was killed\n")


def test_a_step_whose_directory_was_deleted(here: Here) -> None:
    runner = runner_of(here, lambda: iter_of(sh("sleep 100")))
    assert not runner.advance(0.05)
    assert runner.run is not None
    here.until(lambda: here.pids("sleep\x00100"))
    here.kill(runner.run)
    here.host.run("rm -r .tpux")
    assert runner.advance(1.0)
    assert runner.failed is not None
    assert b"no longer on the worker" in runner.failed[1].output


def test_a_plugin_that_raises(here: Here) -> None:
    def steps() -> Generator[Step, Result, None]:
        yield sh("true")
        raise TpuxError("no such image")

    runner = runner_of(here, steps)
    with pytest.raises(TpuxError, match="no such image"):
        finish(here, runner)
    assert runner.advance(20.0)


def test_a_result_has_the_end_of_long_output(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TAIL", 10)
    step = sh("seq 1 2000000; exit 1")
    runner = finish(here, runner_of(here, lambda: iter_of(step)))
    assert runner.failed == (step, Result(1, b"9\n2000000\n"))
    assert len(log_of(here)) > 10_000_000


def test_a_dry_run_does_nothing() -> None:
    steps = dry_run(install())
    assert [type(step) for step in steps] == [Sh, Put, Put, Sh, Sh]


def iter_of(*steps: Step) -> Generator[Step, Result, None]:
    for step in steps:  # noqa: UP028  (a tuple has no send)
        yield step


def test_a_log_continues_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = ReplayLog(path, "== one ==")
    first.write(b"hel")
    again = ReplayLog(path, "== one ==")
    again.write(b"hello")
    again.line("exit 1")
    assert path.read_text() == "== one ==\nhello\nexit 1\n"
    ReplayLog(path, "== two ==").line("two")
    ReplayLog(path, "== one").line("another")
    last = ReplayLog(path, "== two ==")
    last.write(b"two\n== one\nanother\nmore\n")
    assert path.read_text() == "== one ==\nhello\nexit 1\n== two ==\ntwo\n== one\nanother\nmore\n"
    assert path.stat().st_mode & 0o777 == 0o600
