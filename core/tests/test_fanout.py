from __future__ import annotations

import threading

import pytest

from tpux.errors import TpuxError
from tpux.remote.fanout import MAX_THREADS, fanout


def test_results_are_in_the_order_of_the_items() -> None:
    assert list(fanout({3: "c", 1: "a", 2: "b"}, lambda key, item: f"{item}{key}").items()) == [
        (3, "c3"),
        (1, "a1"),
        (2, "b2"),
    ]
    assert fanout({}, lambda _, item: item) == {}


def test_an_error_is_the_result_of_its_item() -> None:
    def call(_: int, item: str) -> str:
        if item == "b":
            raise TpuxError("unreachable")
        return item

    answers = fanout({0: "a", 1: "b", 2: "c"}, call)
    assert (answers[0], str(answers[1]), answers[2]) == ("a", "unreachable", "c")


def test_other_exceptions_are_raised_once_all_calls_have_ended() -> None:
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


def test_parallel_calls_up_to_the_limit() -> None:
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


def test_nested_fanouts_do_not_deadlock_on_a_full_pool() -> None:
    def outer(key: int, _: None) -> int:
        answers = fanout(dict.fromkeys(range(10), key), lambda inner, outer: inner * outer)
        return sum(answer for answer in answers.values() if isinstance(answer, int))

    assert fanout(dict.fromkeys(range(2 * MAX_THREADS)), outer) == {key: 45 * key for key in range(2 * MAX_THREADS)}
