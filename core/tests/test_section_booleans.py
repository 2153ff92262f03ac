"""True and false in a plugin's section where a number is expected: they are not 1 and 0."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, ValidationError

from tpux import Section
from tpux.fields import Duration


class Inner(BaseModel):
    size: int = Field(1, alias="bytes")


class Numbers(Section):
    count: int = 1
    rate: float | None = None
    sizes: list[int] = Field(default_factory=list)
    shape: tuple[int, ...] = ()
    limits: dict[str, int] = Field(default_factory=dict)
    inner: Inner | None = None
    inners: list[Inner] = Field(default_factory=list)
    either: bool | int = 0
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    wait: Duration = 1.0


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"count": True}, ("count",)),
        ({"rate": False}, ("rate",)),
        ({"sizes": [1, True]}, ("sizes", 1)),
        ({"shape": [False]}, ("shape", 0)),
        ({"limits": {"a": True}}, ("limits", "a")),
        ({"inner": {"bytes": True}}, ("inner", "bytes")),
        ({"inners": [{"bytes": True}]}, ("inners", 0, "bytes")),
    ],
)
def test_a_boolean_is_no_number(section: dict[str, object], place: tuple[object, ...]) -> None:
    with pytest.raises(ValidationError) as error:
        Numbers.model_validate(section)
    assert [(one["loc"], one["type"].partition("_")[2]) for one in error.value.errors()] == [(place, "type")]


def test_booleans_stay_where_they_are_expected() -> None:
    section = Numbers.model_validate({"either": True, "options": {"a": True, "b": 1}, "sizes": ["2"]})
    assert (section.either, section.options, section.sizes) == (True, {"a": True, "b": 1}, [2])


def test_what_converts_its_value_says_itself_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match="'true' is not a duration"):
        Numbers.model_validate({"wait": True})
