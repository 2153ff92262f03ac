"""The Python that runs on workers: images of Cloud TPU VMs have Python 3.8, whatever the machine that runs tpux has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDEST = (3, 8)
HEREDOC = re.compile(r"^[^\n]* - ?[^\n]*<<'(\w+)'\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
"""A script that an interpreter reads from its standard input: `python3 - <<'EOF'`."""
WHOLE_FILES = ("plugins/wandb/src/tpux_wandb/read_run.py",)


def sources() -> dict[str, str]:
    """Return the Python sources that are run on workers, by their file and line."""
    found = {name: (ROOT / name).read_text() for name in WHOLE_FILES}
    for path in sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for script in HEREDOC.finditer(node.value):
                    found[f"{path.relative_to(ROOT)}:{node.lineno}"] = script[2]
    for path in sorted([*ROOT.glob("core/src/**/*.sh"), *ROOT.glob("plugins/*/src/**/*.sh")]):
        for script in HEREDOC.finditer(path.read_text()):
            found[str(path.relative_to(ROOT))] = script[2]
    return found


SOURCES = sources()


@pytest.mark.parametrize("name", SOURCES)
def test_the_oldest_python_of_workers_reads_it(name):
    ast.parse(SOURCES[name], name, feature_version=OLDEST)


def test_the_scripts_of_doctor_of_wandb_and_of_venv_are_found():
    assert {Path(name.partition(":")[0]).name for name in SOURCES} >= {"examine.py", "read_run.py", "scripts.py"}
