"""Backoff grows, is capped, and survives any number of retries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpux.backoff import Backoff

SECONDS = st.floats(0, 1e9)
BACKOFFS = st.builds(Backoff, first=SECONDS, cap=SECONDS, factor=st.floats(1, 1e6), jitter=st.just(0.0))


@given(BACKOFFS, st.integers(0, 10**7), st.integers(0, 10**4))
def test_delays_are_monotone_and_capped(backoff: Backoff, retry: int, more: int) -> None:
    assert 0 <= backoff.delay(retry) <= backoff.delay(retry + more) <= backoff.cap


@given(BACKOFFS)
def test_the_first_delays(backoff: Backoff) -> None:
    assert backoff.delay(0) == min(backoff.first, backoff.cap)
    assert backoff.delay(1) == min(backoff.first * backoff.factor, backoff.cap)


def test_a_delay_doubles_until_the_cap() -> None:
    backoff = Backoff(first=0.5, cap=15)
    assert [backoff.delay(retry) for retry in range(7)] == [0.5, 1, 2, 4, 8, 15, 15]
    assert backoff.delay(5000) == 15


def test_no_first_delay_never_becomes_one() -> None:
    assert [Backoff(first=0, cap=60).delay(retry) for retry in (0, 10, 5000)] == [0, 0, 0]


@given(st.integers(0, 5000))
def test_jitter_shortens_a_delay_by_its_share_at_most(retry: int) -> None:
    full, delay = Backoff(1, 60).delay(retry), Backoff(1, 60, jitter=0.25).delay(retry)
    assert 0.75 * full <= delay <= full


def test_jitter_differs_from_call_to_call() -> None:
    backoff = Backoff(first=1, cap=60, jitter=0.5)
    assert len({backoff.delay(3) for _ in range(20)}) > 1
