"""The accounting of observed time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux.clock import ObservedTime


class ManualClock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def boottime(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.time += seconds
        return event.is_set()


def test_a_condition_counts_from_its_first_observation() -> None:
    clock = ManualClock()
    observed = ObservedTime(clock)
    counted = []
    for seconds in (5, 1, 1.5, 0):
        clock.time += seconds
        counted.append(observed.observe("silent", 1))
    assert counted == [0, 1, 2.5, 2.5]


def test_a_gap_counts_as_two_intervals() -> None:
    clock = ManualClock()
    observed = ObservedTime(clock)
    observed.observe("silent", 3)
    clock.time += 1800
    assert observed.observe("silent", 1) == 6
    clock.time += 1800
    assert observed.observe("silent", 1) == 8


def test_conditions_are_counted_apart_and_from_zero_after_they_have_ended() -> None:
    clock = ManualClock()
    observed = ObservedTime(clock)
    for _ in range(3):
        observed.observe("worker 0", 1)
        observed.observe("worker 1", 1)
        clock.time += 1
    observed.end("worker 0")
    assert observed.observe("worker 0", 1) == 0
    assert observed.observe("worker 1", 1) == 3
    observed.clear()
    assert observed.seconds() == {}


def test_a_later_process_continues_without_the_time_in_between() -> None:
    clock = ManualClock()
    clock.time = 1e6
    observed = ObservedTime(clock, {"silent": 40.0})
    assert observed.observe("silent", 1) == 40
    clock.time += 1
    assert observed.observe("silent", 1) == 41
    assert observed.seconds() == {"silent": 41}


STEPS = st.lists(st.tuples(st.floats(-1e4, 1e6), st.floats(0, 60), st.booleans()), max_size=50)


@given(STEPS)
def test_no_more_counts_than_has_passed_nor_than_two_intervals_per_observation(
    steps: list[tuple[float, float, bool]],
) -> None:
    clock = ManualClock()
    observed = ObservedTime(clock)
    before, allowed, passed = observed.observe("x", 0), 0.0, 0.0
    interval = 0.0
    for advance, following, restart in steps:
        clock.time += advance
        if restart:
            observed = ObservedTime(clock, observed.seconds())
        else:
            allowed += 2 * interval
            passed += max(0.0, advance)
        seconds = observed.observe("x", following)
        interval = following
        assert seconds >= before
        assert seconds <= allowed + 1e-6 * (1 + allowed)
        assert seconds <= passed + 1e-6 * (1 + passed)
        before = seconds


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50))
def test_all_of_it_counts_while_polls_are_on_time(gaps: list[float]) -> None:
    clock = ManualClock()
    observed = ObservedTime(clock)
    observed.observe("x", 10)
    for gap in gaps:
        clock.time += gap
        seconds = observed.observe("x", 10)
    assert seconds == pytest.approx(sum(gaps))
