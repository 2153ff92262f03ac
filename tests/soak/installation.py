"""A copy of tpux that can be replaced by another version while a supervisor runs from it."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import distribution
from pathlib import Path

import tpux


class Installation:
    """A directory for PYTHONPATH with a copy of core and its metadata.

    Args:
        directory: where the copy is made.
    """

    def __init__(self, directory: Path) -> None:
        self.site = directory
        self.version = ""
        self._metadata: Path | None = None
        shutil.copytree(Path(tpux.__file__).parent, directory / "tpux", ignore=shutil.ignore_patterns("__pycache__"))

    def install(self, version: str) -> None:
        """Replace the installed version."""
        new = self.site / f"tpux_core-{version}.dist-info"
        found = distribution("tpux-core")
        text = (found.read_text("METADATA") or "").replace(f"Version: {found.version}", f"Version: {version}")
        new.mkdir()
        (new / "METADATA").write_text(text)
        (new / "entry_points.txt").write_text(found.read_text("entry_points.txt") or "")
        if self._metadata is not None:
            shutil.rmtree(self._metadata)
            for path in (self.site / "tpux").rglob("*.py"):
                os.utime(path)
        self.version, self._metadata = version, new
