"""Deadlines in real time."""

from __future__ import annotations

import pytest

from tpux.clock import Deadlines, SystemClock


class SetClock(SystemClock):
    """A clock whose wall time tests set, and that they suspend."""

    def __init__(self) -> None:
        super().__init__(1)
        self.wall = 1000.0
        self.boot = 0.0

    def now(self) -> float:
        return self.wall

    def boottime(self) -> float:
        return self.boot


def test_a_deadline_does_not_move_with_the_wall_clock() -> None:
    clock = SetClock()
    deadlines = Deadlines(clock)
    assert deadlines.left(1600, 600) == 600
    clock.wall -= 3600
    clock.boot += 500
    assert deadlines.left(1600, 600) == 100
    clock.wall += 7200
    assert deadlines.left(1600, 600) == 100
    clock.boot += 101
    assert deadlines.left(1600, 600) == -1


def test_a_later_process_waits_at_most_for_the_duration() -> None:
    clock = SetClock()
    clock.wall -= 3600
    assert Deadlines(clock).left(1600, 600) == 600
    clock.wall += 4000
    assert Deadlines(clock).left(1600, 600) == 200


def test_the_system_clock_runs_on() -> None:
    clock = SystemClock(2)
    first = clock.boottime()
    assert clock.boottime() >= first
    assert clock.boottime() == pytest.approx(first, abs=120)
