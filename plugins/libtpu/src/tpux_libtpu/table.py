"""The table of signatures: tpux' own, and that of a lab."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from tpux import FailureKind, Pattern

OWN = Path(__file__).with_name("signatures.yaml")


class Signature(BaseModel):
    """A line of a log, and what it means; signatures.yaml describes the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FailureKind
    pattern: Pattern
    hint: str = ""
    symptom: bool = False
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


@functools.cache
def own_table() -> Table:
    """Return tpux' own table."""
    return _read(OWN)


def table_with(lab: Path | None) -> Table:
    """Return the table that is used: a lab's signatures come before tpux' own.

    Raises:
        ValueError: the lab's file is invalid.
    """
    own = own_table()
    if lab is None:
        return own
    added = _read(lab)
    return Table((*added.signatures, *own.signatures), own.program_errors | added.program_errors)


def _read(path: Path) -> Table:
    """Read a file of signatures.

    Raises:
        ValueError: it is invalid; names the file, the line and what is wrong.
    """
    try:
        data = YAML().load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"{path}:{line}: {error.problem}") from error
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}:{_line(data, first['loc'])}: {where}: {message}") from error
    return Table(file.signatures, frozenset(file.program_errors))


def _line(data: object, path: tuple[int | str, ...]) -> int:
    """Return the line of a value, by its path; of one that is missing, that of what should contain it."""
    line = 1
    for part in path:
        try:
            mark = data.lc.item(part) if isinstance(part, int) else data.lc.key(part)  # type: ignore[attr-defined]
            line, data = mark[0] + 1, data[part]  # type: ignore[index]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line
