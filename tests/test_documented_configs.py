"""Each whole config in a document is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpux import config
from tpux.config.models import section_names
from tpux.errors import ConfigError, Problem
from tpux.plugin.manager import Plugins

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


PLUGINS = Plugins()
VARIABLES = ("TOKEN", "WANDB_API_KEY")
SECTIONS = set(section_names(PLUGINS))


def documented() -> list[object]:
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]:
        for number, block in enumerate(BLOCK.findall(page.read_text())):
            keys = re.findall(r"^([^#\s].*?):", block, re.MULTILINE)
            if set(keys) <= SECTIONS and block.startswith((*keys, "#")):
                found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("text", documented())
def test_it_is_valid_but_for_files_that_it_names(tmp_path: Path, text: str) -> None:
    if "command:" not in text:
        text += "command: python train.py\n"
    (tmp_path / "train.yaml").write_text(text)
    problems: list[Problem] = []
    try:
        config.load(tmp_path / "train.yaml", [], plugins=PLUGINS, environ=dict.fromkeys(VARIABLES, "x"))
    except ConfigError as error:
        problems = error.problems
    assert [str(problem) for problem in problems if "file not found" not in problem.message] == []
