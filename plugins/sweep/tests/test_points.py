"""The points of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpux import UsageError
from tpux_sweep.points import make_points, read_points, split_values, split_words


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", ["0.1", "0.01"]),
        ("[a,b]", ["[a,b]"]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ("{x: 1, y: 2},3", ["{x: 1, y: 2}", "3"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a,b'", ["'a,b'"]),
        ("uniform(0,1)", ["uniform(0,1)"]),
        ("a]b,c", ["a]b", "c"]),
        ("", [""]),
    ],
)
def test_values_are_separated_by_commas_outside_of_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_a_grid_has_all_combinations() -> None:
    fixed, grid = split_words(["lr=0.1,0.01", "seed=3", "bs=1,2"])
    assert fixed == ["seed=3"]
    points = [(point["lr"], point["bs"]) for point in make_points(grid)]
    assert points == [("0.1", "1"), ("0.1", "2"), ("0.01", "1"), ("0.01", "2")]
    with_file = make_points(grid, [{"a": "x"}, {"a": "y"}])
    assert len(with_file) == 8
    assert with_file[0] == {"a": "x", "lr": "0.1", "bs": "1"}


def test_random_points_are_the_same_when_typed_again_and_differ_from_each_other() -> None:
    grid = {"lr": ["loguniform(1e-4,0.1)"], "n": ["int(2,4)"], "o": ["a", "b"], "u": ["uniform(0,1)"]}
    points = make_points(grid, count=50)
    assert points == make_points(grid, count=50)
    assert points != make_points(grid, count=50, seed=1)
    assert points[:10] == make_points(grid, count=10)
    assert len({tuple(point.values()) for point in points}) == 50
    assert all(1e-4 <= float(point["lr"]) <= 0.1 and point["n"] in {"2", "3", "4"} for point in points)
    assert {point["o"] for point in points} == {"a", "b"}
    assert len(make_points({"o": ["a", "b"]}, count=9)) == 2


def test_what_makes_no_sweep_is_an_error() -> None:
    for words in (["lr"], ["=1,2"], ["lr=1,1"]):
        with pytest.raises(UsageError):
            split_words(words)
    for grid, count in (
        ({}, None),
        ({"lr": ["uniform(0,1)"]}, None),
        ({"lr": ["uniform(1,0)"]}, 1),
        ({"lr": ["loguniform(0,1)"]}, 1),
        ({"n": ["int(a,b)"]}, 1),
        ({"n": ["int(0.2,0.5)"]}, 1),
        ({"n": ["int(1,inf)"]}, 1),
    ):
        with pytest.raises(UsageError):
            make_points(grid, count=count)


def test_a_file_of_points(tmp_path: Path) -> None:
    path = tmp_path / "points.yaml"
    path.write_text("- {lr: 0.1, name: a b, list: [1, x], on: true}\n- {lr: '1e-4'}\n")
    assert read_points(path) == [{"lr": "0.1", "name": "a b", "list": '[1, "x"]', "on": "true"}, {"lr": "1e-4"}]
