from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpux.errors import HostUnreachableError, TpuxError
from tpux.plugin.steps import Put, Result, Sh, Step, dry_run, put, sh
from tpux.remote import steps
from tpux.remote.steps import ReplayLog, StepRunner

if TYPE_CHECKING:
    from conftest import Here, HereHost

HEADER = "== attempt 1, try 1: setup venv =="
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
StepsOf = Callable[[], Generator[Step, Result, object]]


def install() -> Generator[Step, Result, str]:
    """Four steps; each that runs counts itself."""
    arch = yield sh("echo arch >>count; uname -m", example="x86_64")
    yield put(b"numpy\n", "requirements.txt")
    yield sh("echo pip >>count\nprintf 'Collecting ...\\nno newline at the end'", may_fail=True)
    code = yield sh("echo look >>count; exit 3", may_fail=True)
    return f"{arch.text} {code.code}"


def walk_of(
    here: Here, steps: StepsOf = install, host: HereHost | Cutting | None = None, clock: Hours | None = None
) -> StepRunner:
    log = ReplayLog(here.home.parent / "venv_worker_0.log", HEADER)
    return StepRunner(host or here.host, steps(), lambda number, _: here.run(f"setup-venv-1-{number}"), log, clock)


def log_of(here: Here) -> str:
    return (here.home.parent / "venv_worker_0.log").read_text()


def to_the_end(here: Here, walk: StepRunner) -> StepRunner:
    here.until(lambda: walk.advance(1.0))
    return walk


def arch(here: Here) -> str:
    return here.host.run("uname -m").text


def test_a_walk(here: Here) -> None:
    walk = to_the_end(here, walk_of(here))
    assert (walk.failed, walk.value, walk.run) == (None, f"{arch(here)} 3", None)
    assert (here.home / "requirements.txt").read_text() == "numpy\n"
    assert (here.home / "requirements.txt").stat().st_mode & 0o777 == 0o600
    assert log_of(here).splitlines() == [
        HEADER,
        "$ echo arch >>count; uname -m",
        arch(here),
        "put requirements.txt",
        "$ echo pip >>count ...",
        "Collecting ...",
        "no newline at the end",
        "$ echo look >>count; exit 3",
        "exit 3",
    ]


@dataclass
class Cutting:
    """A host whose supervisor dies or whose connection breaks: at these calls, before or after they are done."""

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


@few
@given(cuts=st.lists(st.sampled_from(["", "before", "after", "death"]), max_size=12))
def test_cuts_and_deaths_start_and_log_nothing_twice(here: Here, cuts: list[str]) -> None:
    here.host.run("rm -rf .tpux count requirements.txt ../venv_worker_0.log")
    host = Cutting(here.host, iter(cuts))
    walk = walk_of(here, host=host)
    while True:
        try:
            if walk.advance(20.0):
                break
        except HostUnreachableError:
            continue
        except KeyboardInterrupt:
            walk = walk_of(here, host=host)
    assert (walk.failed, walk.value) == (None, f"{arch(here)} 3")
    assert (here.home / "count").read_text() == "arch\npip\nlook\n"
    told = log_of(here)
    (here.home.parent / "venv_worker_0.log").unlink()
    to_the_end(here, walk_of(here))
    assert told == log_of(here)


def test_a_step_that_fails_ends_the_walk(here: Here) -> None:
    reached = []

    def steps() -> Generator[Step, Result, None]:
        try:
            yield sh("echo no; exit 4")
            reached.append("the step after it")
        finally:
            reached.append("its end")

    walk = to_the_end(here, walk_of(here, steps))
    assert walk.failed is not None
    step, result = walk.failed
    assert isinstance(step, Sh)
    assert result == Result(4, b"no\n")
    assert reached == ["its end"]


def test_a_long_step_does_not_hold_the_walker_up(here: Here) -> None:
    walk = walk_of(here, lambda: iter_of(sh("until [ -e go ]; do sleep 0.02; done; echo went")))
    assert not walk.advance(0.05)
    assert walk.run == here.run("setup-venv-1-1")
    assert not walk.advance(0.05)
    (here.home / "go").touch()
    assert to_the_end(here, walk).failed is None
    assert log_of(here).endswith("\nwent\n")


@dataclass
class Hours:
    """A clock that stands still until it is moved."""

    at: float = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody here sleeps")

    wait = None


@pytest.mark.parametrize(("on_term", "code"), [("sys.exit(7)", 7), ("sys.exit(0)", 143)])
def test_a_step_that_takes_too_long(here: Here, on_term: str, code: int) -> None:
    step, clock = Sh(here.stubborn(on_term), timeout=3600), Hours()
    walk = walk_of(here, lambda: iter_of(step), clock=clock)
    here.until(lambda: not walk.advance(0.05) and "\nset\n" in log_of(here))
    clock.at = 3601
    here.until(lambda: walk.advance(0.05))
    assert walk.failed == (step, Result(code, b"set\nit took longer than 3600 s and was ended\n"))
    told = log_of(here)
    assert told.endswith(f"set\nit took longer than 3600 s and was ended\nexit {code}\n")
    assert to_the_end(here, walk_of(here, lambda: iter_of(step))).failed == walk.failed
    assert log_of(here) == told


def test_a_step_that_takes_too_long_and_ignores_sigterm(here: Here) -> None:
    step, clock = Sh(here.stubborn("None"), timeout=3600), Hours()
    walk = walk_of(here, lambda: iter_of(step), clock=clock)
    here.until(lambda: not walk.advance(0.05) and "\nset\n" in log_of(here))
    clock.at = 3601
    assert not walk.advance(0.05)
    assert not walk.advance(0.05)
    assert here.pids("signal"), "it has its time to end"
    clock.at += steps.GRACE + 1
    here.until(lambda: walk.advance(0.05))
    assert walk.failed is not None
    assert walk.failed[1].code == 137


def test_a_lost_step_ends_even_a_walk_that_allows_failures(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SILENCE", 0.0)
    walk = walk_of(here, lambda: iter_of(sh("sleep 100", may_fail=True)))
    assert not walk.advance(0.05)
    assert walk.run is not None
    here.host.run(f"kill -9 {here.runner(walk.run)}")
    assert to_the_end(here, walk).failed is not None
    assert walk.failed is not None
    assert walk.failed[1] == Result(steps.LOST, b"its runner was killed\n")


def test_a_step_whose_directory_is_gone(here: Here) -> None:
    walk = walk_of(here, lambda: iter_of(sh("sleep 100")))
    assert not walk.advance(0.05)
    assert walk.run is not None
    here.until(lambda: here.pids("sleep\x00100"))
    here.kill(walk.run)
    here.host.run("rm -r .tpux")
    assert walk.advance(1.0)
    assert walk.failed is not None
    assert b"no longer on the worker" in walk.failed[1].output


def test_a_plugin_that_raises(here: Here) -> None:
    def steps() -> Generator[Step, Result, None]:
        yield sh("true")
        raise TpuxError("no such image")

    walk = walk_of(here, steps)
    with pytest.raises(TpuxError, match="no such image"):
        to_the_end(here, walk)
    assert walk.advance(20.0)


def test_a_result_keeps_the_end_of_much_output(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "KEPT", 10)
    step = sh("seq 1 2000000; exit 1")
    walk = to_the_end(here, walk_of(here, lambda: iter_of(step)))
    assert walk.failed == (step, Result(1, b"9\n2000000\n"))
    assert len(log_of(here)) > 10_000_000


def test_a_dry_run_does_nothing() -> None:
    steps = dry_run(install())
    assert [type(step) for step in steps] == [Sh, Put, Sh, Sh]


def iter_of(*steps: Step) -> Generator[Step, Result, None]:
    for step in steps:  # noqa: UP028  (a tuple takes no answers)
        yield step


def test_a_log_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
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
