"""The points of a sweep: a grid of values, a random choice from it, or a file."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tpux import UsageError

Point = Mapping[str, str]
"""The value of each key that differs from point to point."""
_RANGE = re.compile(r"(uniform|loguniform|int)\(([^(),]+),([^(),]+)\)")
_OPENING, _CLOSING = "([{", ")]}"


def split_values(text: str) -> list[str]:
    """Return the values of `0.1,0.01`: commas within brackets or quotes separate nothing, so `[a,b]` is one value."""
    values, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth <= 0:
            values.append("")
            continue
        values[-1] += char
    return values


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words that all points have, and the values of each key that has several or a range.

    Raises:
        UsageError: a word is not `key=value`, or a key has a value twice.
    """
    fixed, grid = list[str](), dict[str, list[str]]()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"expected key=value, got {word!r}", hint="for example lr=0.1,0.01")
        values = split_values(text)
        if len(set(values)) < len(values):
            raise UsageError(f"{word}: a value is there twice")
        if len(values) == 1 and not _RANGE.fullmatch(text):
            fixed.append(word)
        else:
            grid[key] = values
    return fixed, grid


def read_points(path: Path) -> list[Point]:
    """Return the points of a YAML or JSON file: a list of mappings.

    Raises:
        ConfigError: the file cannot be read, or is something else.
    """
    from pydantic import RootModel

    from tpux.fields import read_data_file

    model = RootModel[list[dict[str, str | bool | int | float | list[object]]]]
    found = read_data_file(path, model).root
    return [
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in one.items()} for one in found
    ]


def make_points(
    grid: Mapping[str, Sequence[str]], given: Sequence[Point] = (), *, count: int | None = None, seed: int = 0
) -> list[Point]:
    """Return the points, the same for the same arguments.

    Args:
        grid: the values of each key.
        given: the points of a file, each combined with those of the grid.
        count: how many points to choose at random; None takes all of the grid.
        seed: chooses others.

    Raises:
        UsageError: there is none, or a range without `count`, or a range that is none.
    """
    if count is None:
        for key, values in grid.items():
            if any(_RANGE.fullmatch(value) for value in values):
                raise UsageError(f"{key}={','.join(values)} is a range: how many points?", hint="--random 20")
        own = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    else:
        own = [*itertools.islice(_random_points(grid, random.Random(seed)), count)]  # noqa: S311  (not for secrets)
    points = [{**one, **other} for one in given or [{}] for other in own]
    unique = [dict(items) for items in dict.fromkeys(tuple(point.items()) for point in points) if items]
    if not unique:
        raise UsageError("no key has several values", hint="tpux sweep train.yaml lr=0.1,0.01 bs=256,512")
    return [*unique]


def _random_points(grid: Mapping[str, Sequence[str]], source: random.Random) -> Iterator[dict[str, str]]:
    """Yield points until none is new."""
    seen, misses = set[tuple[str, ...]](), 0
    while grid and misses < 1000:
        point = {key: _draw(key, source.choice(values), source) for key, values in grid.items()}
        misses = misses + 1 if (values := tuple(point.values())) in seen else 0
        if values not in seen:
            seen.add(values)
            yield point


def _draw(key: str, value: str, source: random.Random) -> str:
    if (match := _RANGE.fullmatch(value)) is None:
        return value
    low, high = _number(match[2]), _number(match[3])
    if (
        not -math.inf < low < high < math.inf
        or (match[1] == "loguniform" and low <= 0)
        or (match[1] == "int" and math.ceil(low) > math.floor(high))
    ):
        hint = "for example uniform(0,1), loguniform(1e-4,0.1) or int(1,8)"
        raise UsageError(f"{key}={value}: not a range", hint=hint)
    if match[1] == "int":
        return str(source.randint(math.ceil(low), math.floor(high)))
    if match[1] == "uniform":
        return f"{source.uniform(low, high):.6g}"
    return f"{math.exp(source.uniform(math.log(low), math.log(high))):.6g}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def as_words(point: Point) -> list[str]:
    """Return a point as words of a command line."""
    return [f"{key}={value}" for key, value in point.items()]


def last_values(words: Sequence[str]) -> dict[str, str]:
    """Return the value that each key has at the end, without those that a sweep sets itself."""
    values = dict(word.partition("=")[::2] for word in words if word != RELEASE)
    return {key: value for key, value in values.items() if key.split(".")[:2] not in OWN}


OWN = (["job", "name"], ["job", "tags"], ["job", "group"])
"""What a sweep sets in each job."""
RELEASE = "tpu.keep_on_failure=0"
"""What it sets as well unless the user has: the machines of a failed job would delay the others."""
