"""Find references to other files in a requirements file (pip.pypa.io, "Requirements File Format")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_OPTION = re.compile(r"(?:-r|-c|-e|--requirement|--constraint|--editable)(?:\s+|=|(?<=-[rce]))\s*(\S+)")
_PATH = re.compile(r"\.{1,2}(?:/\S*)?$")


def uncopied_files(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) for each reference by relative path, since such files are not on the workers."""
    for number, text in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        line = text.split(" #")[0].strip()
        option = _OPTION.match(line)
        named = option[1] if option else line
        if _is_relative(named) and (option or _PATH.match(named)):
            yield number, named


def _is_relative(name: str) -> bool:
    return bool(name) and not name.startswith(("/", "~", "$", "#")) and "://" not in name
