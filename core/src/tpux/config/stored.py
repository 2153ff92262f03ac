"""A config file as a job has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple


class Stored(NamedTuple):
    """A config file as a job has it.

    Attributes:
        text: its content.
        copies: the job's copy of each file that the config names.
        sources: where each of these files was read, if that is known.
        home: what `~` in a path on this machine stands for.
        settings: path and content of each file of settings, as it was.
        plugins: the plugins that are files, each with where it is read.
    """

    text: str
    copies: Mapping[Path, Path]
    sources: Mapping[Path, Path]
    home: Path
    settings: tuple[tuple[str, str], ...] = ()
    plugins: Mapping[Path, Path] = MappingProxyType({})
