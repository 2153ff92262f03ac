"""The example of docs/plugins.md is a plugin that works, and its tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs/plugins.md"


def _blocks(first_line: str) -> list[str]:
    """Return the code blocks of the page that begin with a comment that names a file."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if block.startswith(f"# {first_line}\n")]


def test_the_tests_of_the_example_pass(tmp_path):
    [plugin], [tests], [project] = (
        _blocks("src/tpux_apt/__init__.py"),
        _blocks("tests/test_apt.py"),
        _blocks("pyproject.toml"),
    )
    [entries] = re.findall(r"entry-points.tpux\]\n(.*)", project)
    site, info = tmp_path / "site/tpux_apt", tmp_path / "site/tpux_plugin_apt-0.1.0.dist-info"
    for directory in (site, info):
        directory.mkdir(parents=True)
    (site / "__init__.py").write_text(plugin)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tpux-plugin-apt\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[tpux]\n{entries.replace(chr(34), '')}\n")
    (tmp_path / "test_apt.py").write_text(tests)
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
