"""The table of signatures: tpux' own, and that of a lab."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tpux.fields import OutputFailureKind, Pattern, find_line, read_data_file

OWN = Path(__file__).with_name("signatures.yaml")


class Signature(BaseModel):
    """A line of a log, and what it means; signatures.yaml describes the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: OutputFailureKind
    pattern: Pattern
    context: Pattern | None = None
    hint: str = ""
    symptom: bool = False
    peers: bool = False
    not_opened: bool = False
    stated: bool = False
    while_running: bool = False
    examples: tuple[str, ...] = ()


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    signatures: tuple[Signature, ...] = ()
    program_errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """The signatures in the order in which they are tried, and the exceptions that are always the program's own."""

    signatures: tuple[Signature, ...]
    program_errors: frozenset[str]

    def explains(self, line: str) -> bool:
        """Return whether a signature matches a line, also one that does not count on a worker without peers."""
        return any(find_line(line, one.pattern) for one in self.signatures)


@functools.cache
def own_table() -> Table:
    """Return tpux' own table."""
    return _read(OWN)


def table_with(lab: Path | None) -> Table:
    """Return the table that is used: a lab's signatures come before tpux' own.

    Raises:
        ConfigError: the lab's file is invalid.
    """
    own = own_table()
    if lab is None:
        return own
    added = _read(lab)
    return Table((*added.signatures, *own.signatures), own.program_errors | added.program_errors)


def _read(path: Path) -> Table:
    file = read_data_file(path, _File)
    return Table(file.signatures, frozenset(file.program_errors))
