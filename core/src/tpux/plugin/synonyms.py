"""What the words of other tools are called here: the table `synonyms.toml`, read when a message needs it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path


def plain(word: str) -> str:
    """Return a word without what tools write differently: case, - and _."""
    return re.sub("[-_ ]", "", word).lower()


@cache
def words(table: str) -> dict[str, str]:
    """Return a table of `synonyms.toml`: plain words, and what they are called here."""
    tables = tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text())
    return {plain(word): meaning for word, meaning in tables[table].items()}


def meant(table: str, word: str) -> str | None:
    """Return what a word of another tool is called here, None if the table does not have it."""
    return words(table).get(plain(word))


def key_hint(path: Sequence[str], keys: Mapping[str, Iterable[str]]) -> str:
    """Return where a key belongs, "" if neither the table nor a section has it.

    Args:
        path: the key, with those that lead to it.
        keys: the keys of each section.
    """
    meaning = meant("keys", ".".join(path)) or meant("keys", path[-1])
    if meaning is not None:
        return f"did you mean {meaning!r}?" if re.fullmatch(r"\S+(: \w+)?", meaning) else meaning
    same = [f"{section}.{key}" for section in keys for key in keys[section] if plain(key) == plain(path[-1])]
    return f"did you mean {' or '.join(map(repr, same))}?" if same else ""
