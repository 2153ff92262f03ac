from __future__ import annotations

import threading

import pytest

from tpux.errors import TpuxError
from tpux.remote.fanout import MOST, fanout


def test_answers_come_in_the_items_order() -> None:
    assert list(fanout({3: "c", 1: "a", 2: "b"}, lambda key, item: f"{item}{key}").items()) == [
        (3, "c3"),
        (1, "a1"),
        (2, "b2"),
    ]
    assert fanout({}, lambda _, item: item) == {}


def test_an_error_is_its_items_answer() -> None:
    def call(_: int, item: str) -> str:
        if item == "b":
            raise TpuxError("unreachable")
        return item

    answers = fanout({0: "a", 1: "b", 2: "c"}, call)
    assert (answers[0], str(answers[1]), answers[2]) == ("a", "unreachable", "c")


def test_anything_else_is_raised_once_all_have_ended() -> None:
    ended = []

    def call(key: int, _: None) -> None:
        if key == 0:
            raise ZeroDivisionError
        ended.append(key)

    with pytest.raises(ZeroDivisionError):
        fanout(dict.fromkeys(range(20)), call)
    assert sorted(ended) == list(range(1, 20))


def test_one_item_needs_no_thread() -> None:
    assert fanout({0: None}, lambda *_: threading.current_thread()) == {0: threading.current_thread()}


def test_many_at_once_but_not_more_than_the_limit() -> None:
    together = threading.Barrier(5, timeout=60)
    fanout(dict.fromkeys(range(20)), lambda *_: together.wait(), limit=5)
    now, most, lock = 0, 0, threading.Lock()

    def call(*_: object) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.005)
        with lock:
            now -= 1

    fanout(dict.fromkeys(range(20)), call, limit=3)
    assert most <= 3


def test_one_inside_another_goes_on_when_all_threads_are_busy() -> None:
    def outer(key: int, _: None) -> int:
        answers = fanout(dict.fromkeys(range(10), key), lambda inner, outer: inner * outer)
        return sum(answer for answer in answers.values() if isinstance(answer, int))

    assert fanout(dict.fromkeys(range(2 * MOST)), outer) == {key: 45 * key for key in range(2 * MOST)}
