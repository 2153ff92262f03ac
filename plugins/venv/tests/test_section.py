from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tpux_venv.section import VenvSection

minors = st.integers(2, 99)


@given(minors, st.sampled_from(["", "python"]), st.sampled_from(["", " "]))
def test_both_spellings_of_a_version_are_normalized(minor, prefix, blank):
    assert VenvSection(python=f"{prefix}3.{minor}{blank}").python == f"3.{minor}"


@given(minors)
def test_the_error_for_a_number_says_what_to_write(minor):
    """An unquoted version arrives as a number, as YAML parses it."""
    number = json.loads(f"3.{minor}")
    with pytest.raises(ValidationError, match="in quotes"):
        VenvSection.model_validate({"python": number})


def test_the_error_for_an_unquoted_3_10():
    with pytest.raises(ValidationError, match=r'unquoted 3\.10 as the number 3\.1: write "3\.10" in quotes'):
        VenvSection.model_validate({"python": 3.1})


@pytest.mark.parametrize("value", ["", "3", "2.7", "3.1", "3.10.4", "py310", "python-3.10", "3.10; rm -rf x", "3.010"])
def test_invalid_versions(value):
    with pytest.raises(ValidationError, match="is not a Python version"):
        VenvSection(python=value)


@pytest.mark.parametrize("path", ["", "/", "//", "-x", "a\nb", "~ann/env"])
def test_invalid_paths(path):
    with pytest.raises(ValidationError):
        VenvSection(path=path)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "$(x)"])
def test_invalid_names(name):
    with pytest.raises(ValidationError):
        VenvSection(name=name)
