"""The section `code`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tpux_code.section import CodeSection


def test_a_text_is_the_directory():
    assert CodeSection.model_validate("src") == CodeSection(dir="src")


@pytest.mark.parametrize(
    ("given", "size"), [(5, 5), ("5", 5), ("500MB", 500_000_000), ("1.5 GiB", 1_610_612_736), ("2kB", 2000)]
)
def test_sizes(given, size):
    assert CodeSection.model_validate({"dir": ".", "max_size": given}).max_size == size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, 'set dir (for example "code: .") or repo'),
        ({"dir": ".", "repo": "u"}, "dir and repo exclude each other"),
        ({"repo": "u", "branch": "b", "pr": 1}, "branch and pr exclude each other"),
        ({"dir": ".", "branch": "b"}, "branch needs repo"),
        ({"repo": "--upload-pack=touch x"}, "has no spaces, and does not begin with a dash"),
        ({"repo": "u", "branch": "-x"}, "'-x' is not the name of a branch or tag"),
        ({"repo": "u", "commit": "main"}, "'main' is not a commit: write 7 or more hexadecimal digits"),
        ({"dir": ".", "max_size": "much"}, "'much' is not a size"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValidationError) as caught:
        CodeSection.model_validate(given)
    assert message in str(caught.value)
