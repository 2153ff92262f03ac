"""Durations: what people write is read, and what tpux shows can be written."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tpux.durations import LONGEST, PATTERN, format_duration, parse_duration

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
PARTS = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS))), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("250ms", 0.25),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5h", 5400),
        ("30", 30),
        ("0.5", 0.5),
        (" 4 s ", 4),
        ("2 h 10 min", 7800),
        ("0", 0),
    ],
)
def test_valid_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "-1s", "1 30s", "1m30", "1w", "1S", "1e3", "inf", "nan", "1,5s", "1.s", "٣s", "9" * 400, "36501d"],
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(PARTS)
def test_parts_are_added(parts: list[tuple[int, str]]) -> None:
    expected = sum(number * UNITS[unit] for number, unit in parts)
    assume(expected <= LONGEST)
    assert parse_duration("".join(f"{number}{unit}" for number, unit in parts)) == pytest.approx(expected)
    assert parse_duration(" ".join(f"{number} {unit}" for number, unit in parts)) == pytest.approx(expected)


@given(st.floats(0, 1e8))
def test_a_formatted_duration_can_be_parsed(seconds: float) -> None:
    shown = parse_duration(format_duration(seconds))
    resolution = 0.051 if seconds < 10 else 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    assert abs(shown - seconds) <= resolution
    assert format_duration(shown + 0.0) == format_duration(seconds) or seconds < 10


@given(st.text(alphabet="0123456789.smhdin ", max_size=12))
def test_the_pattern_is_what_the_parser_accepts(text: str) -> None:
    problem = ""
    try:
        parse_duration(text)
    except ValueError as error:
        problem = str(error)
    assert (not problem or "too long" in problem) == bool(re.match(PATTERN, text, re.ASCII))


def test_format_duration() -> None:
    shown = [format_duration(seconds) for seconds in (-1, 0.42, 12.9, 185, 7800, 90000)]
    assert shown == ["0.0 s", "0.4 s", "12 s", "3 min 5 s", "2 h 10 min", "1 d 1 h"]
