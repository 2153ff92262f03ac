"""Descriptions of keys, as the JSON Schema, `tpux plugins show` and messages have them."""

from __future__ import annotations

from pydantic import Field, create_model

from tpux import Section
from tpux.plugin.descriptions import descriptions


class Base(Section):
    """A section."""

    first: int = 1
    """The first
    key."""
    second: int = 2
    """The second key."""
    plain: int = 3


class Derived(Base):
    """Another one."""

    second: int = 4
    """Another meaning."""
    third: int = Field(5, description="Given to pydantic.")
    """Not this."""


def test_the_docstrings_of_fields_are_their_descriptions() -> None:
    assert descriptions(Base) == {"first": "The first\nkey.", "second": "The second key."}
    expected = {"first": "The first\nkey.", "second": "Another meaning.", "third": "Given to pydantic."}
    assert descriptions(Derived) == expected


def test_a_class_without_a_source_has_those_of_its_bases() -> None:
    made = create_model("made", __base__=Base, fourth=(int, 1))
    assert descriptions(made) == descriptions(Base)
