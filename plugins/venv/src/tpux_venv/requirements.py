"""What a requirements file names beside packages (pip.pypa.io, "Requirements File Format")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_OPTION = re.compile(r"(?:-r|-c|-e|--requirement|--constraint|--editable)(?:\s+|=|(?<=-[rce]))\s*(\S+)")
_PATH = re.compile(r"\.{1,2}(?:/\S*)?$")


def uncopied_files(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that name a file beside this one, as number and name; on a worker only this one would be there."""
    for number, text in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        line = text.split(" #")[0].strip()
        option = _OPTION.match(line)
        named = option[1] if option else line
        if _is_relative(named) and (option or _PATH.match(named)):
            yield number, named


def _is_relative(name: str) -> bool:
    return bool(name) and not name.startswith(("/", "~", "$", "#")) and "://" not in name
