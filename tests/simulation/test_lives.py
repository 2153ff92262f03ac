"""Simulated lives of a job: a sample in `make test`, more in `make test-all`, thousands in `make faults`."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import read
from tests.simulation.life import SCENARIOS, Life, live
from tests.simulation.plan import life, numbers

IN_TEST, IN_TEST_ALL = 5, 24
"""Lives of each scenario in `make test`, and in `make test-all`."""

FOUND = (
    "deleted | 0 || error after | store: rename .deleted-N @stopped",
)
"""Lives with a violation that is mended."""


def check(one: Life) -> None:
    outcome = live(one)
    assert not outcome.violations, f"{one}\n" + "\n".join(outcome.violations)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_life_without_faults(scenario):
    check(Life(scenario))


@pytest.mark.parametrize("text", FOUND)
def test_a_life_that_was_broken(text):
    one = read(text)
    outcome = live(one)
    assert outcome.hit == list(one.faults), "no fault happens there any more"
    assert not outcome.violations, f"{one}\n" + "\n".join(outcome.violations)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_some_lives(scenario):
    for number in numbers(scenario, 0, IN_TEST):
        check(life(number))


@pytest.mark.system
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_more_lives(scenario):
    for number in numbers(scenario, IN_TEST, IN_TEST_ALL):
        check(life(number))


def test_a_life_is_the_same_each_time():
    one = life(numbers("stopped and resumed", 0, 9)[8])
    assert live(one).points == live(one).points
    assert read(str(one)) == one
