"""The section `code`."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from pydantic import ValidationError

import tpux_code
from tpux import TpuSection
from tpux.api.text import format_size
from tpux_code.section import CodeSection
from tpux_testing import job


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
        ({"dir": ".", "max_size": "9" * 400}, "is not a size"),
        ({"dir": ".", "exclude": ["data/", "!"]}, "'!' is not a pattern of .gitignore"),
        ({"dir": ".", "include": ["data\\"]}, "is not a pattern of .gitignore"),
        ({"repo": "https://["}, "the repository has no valid URL"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValidationError) as caught:
        CodeSection.model_validate(given)
    assert message in str(caught.value)


class Machines(TpuSection):
    transport: ClassVar[str] = "ssh"
    workers: int | None = None

    def count_workers(self) -> int | None:
        return self.workers


@pytest.mark.parametrize(
    ("size", "workers", "ssh", "message"),
    [
        (1_000_000, 50, False, ""),
        (1_500_000, 64, False, ": 1.5 MB of code for each of 64 workers"),
        (50_000_001, None, False, " for each worker"),
        (1_500_000, 64, True, ""),
        (60_000_000, 64, True, " for one worker, from which the others copy it"),
        (60_000_000, 1, False, ""),
    ],
)
def test_preflight_warns_about_much_code_for_a_slow_network(tmp_path, home, size, workers, ssh, message):
    (tmp_path / "train.py").touch()
    made = job({"code": {"dir": str(tmp_path)}, **({"ssh": {"between_workers": True}} if ssh else {})})
    local = replace(made, resolved={"code": {**made.resolved["code"], "size": size}})
    far = replace(local, sections={**made.sections, "tpu": Machines(workers=workers)})
    total = size if ssh else size * (workers or 1)
    start = f"up to {format_size(total)} pass through this machine's network"
    for each, expected in ((far, [start + message] if total > 50_000_000 else []), (local, [])):
        findings = tpux_code.preflight(each)
        assert [finding.message for finding in findings if finding.level == "warning"] == expected
