"""Simulated lives of a job: a sample in `make test`, more in `make test-all`, thousands in `make faults`."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from tests.simulation.__main__ import read
from tests.simulation.cloud import Cloud
from tests.simulation.life import SCENARIOS, Life, live
from tests.simulation.plan import life, numbers
from tpux import Released

IN_TEST, IN_TEST_ALL = 5, 27
"""Lives of each scenario in `make test`, and in `make test-all`."""

AIMED = (
    # Their violations are mended: the rename of a record that took effect and reported an error was never repeated,
    # and the state in memory had another attempt in its last request than the events.
    "deleted | 0 || error after | store: rename .deleted-N @stopped",
    "stopped | 0 || death after | store: write events.jsonl request-accepted @stopping",
    # Each of these is broken by a change of one line (tests/mutants/table.py).
    "plain | 0 || wiped | worker: read @running",
    "stopped and resumed | 0 || cut | worker: stop @stopping",
    "stopped while it gets machines | 0 || late effect | allocator: provision @provisioning",
    "plain | 0 || death before | store: write events.jsonl state-changed @setting-up",
    "plain | 0 || death after | store: write events.jsonl attempt-ended @running",
    "plain | 0 || error before | store: write prep_worker_N.log @setting-up",
    "stopped | 0 || death before | store: write events.jsonl state-changed @running",
)
"""Lives that have been broken, or that are if a line is."""


def check(one: Life) -> None:
    outcome = live(one)
    assert not outcome.violations, f"{one}\n" + "\n".join(outcome.violations)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_life_without_faults(scenario):
    check(Life(scenario))


@pytest.mark.parametrize("text", AIMED)
def test_a_life_that_can_break(text):
    one = read(text)
    outcome = live(one)
    assert outcome.hit == list(one.faults), "no fault happens there any more"
    assert not outcome.violations, f"{one}\n" + "\n".join(outcome.violations)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_some_lives(scenario):
    for number in numbers(scenario, 0, IN_TEST):
        check(life(number))


@pytest.mark.system  # 308 lives
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_more_lives(scenario):
    for number in numbers(scenario, IN_TEST, IN_TEST_ALL):
        check(life(number))


def test_a_life_is_the_same_each_time():
    one = life(numbers("stopped and resumed", 0, 9)[8])
    assert live(one).points == live(one).points
    assert read(str(one)) == one


def test_machines_that_are_being_deleted_still_count():
    machine = SimpleNamespace(destroy=lambda: None)
    cloud = Cloud(lambda: 0.0, lambda _, act: act(), lambda: machine, 1)
    cloud._create("one", "000001")
    request = SimpleNamespace(name="one", interrupted=False, labels={"tpux-job": "000001"})
    cloud._release(request)
    cloud._provision(request)
    cloud._create("two", "000001")
    assert cloud.problems == [
        "machines were requested while one was being deleted",
        "two allocations of one job at a time: ['one', 'two']",
    ]


def test_preempted_machines_that_are_left_are_a_violation():
    one = read("stopped and released | 0 || preemption | worker: stop @stopping")
    assert not live(one).violations
    with mock.patch.object(Cloud, "_release", return_value=Released()):
        [violation] = live(one).violations
    assert violation.startswith("preempted machines were not released: ")
