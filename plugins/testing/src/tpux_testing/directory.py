"""The directory of plugins: a table of distributions, read from `directory.toml` without a network."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Entry:
    """A distribution with plugins or commands.

    Attributes:
        dist: what pip installs.
        kinds: what its plugins are, such as `environment`.
        words: what users write: the names of its plugins in a config, and its commands.
        summary: what they do.
        url: where it is; "" for the plugins of tpux itself.
    """

    dist: str
    kinds: list[str]
    words: list[str]
    summary: str
    url: str = ""


def entries() -> list[Entry]:
    """Return all entries by name."""
    table = tomllib.loads((files("tpux_testing") / "directory.toml").read_text())
    return [Entry(dist, **entry) for dist, entry in sorted(table.items())]


def search(text: str) -> list[Entry]:
    """Return the entries that have all words of a text, those first whose own words are among them."""
    words = text.lower().split()
    found = [entry for entry in entries() if all(word in _text(entry) for word in words)]
    return sorted(found, key=lambda entry: not {*words} & {*entry.words, *entry.kinds})


def page() -> Iterator[str]:
    """Yield the rows of the table in docs/plugins/directory.md."""
    yield "| distribution | what it is | words | what it does |"
    yield "|---|---|---|---|"
    for entry in entries():
        url = entry.url or f"../../plugins/{entry.dist.removeprefix('tpux-plugin-')}"
        words = ", ".join(f"`{word}`" for word in entry.words)
        yield f"| [{entry.dist}]({url}) | {', '.join(entry.kinds)} | {words} | {entry.summary} |"


def _text(entry: Entry) -> str:
    return " ".join([entry.dist, *entry.kinds, *entry.words, entry.summary]).lower()
