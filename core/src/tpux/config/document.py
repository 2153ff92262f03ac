"""A config as it was written: every key and value together with where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

Plain = bool | int | float | str | None
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """A text and what it is called: the config's file."""

    name: str
    text: str

    def place(self, index: int) -> str:
        """Where the character with that index stands, as `file:line:column`, both counted from 1."""
        line = self.text.count("\n", 0, index) + 1
        column = index - self.text.rfind("\n", 0, index)
        return f"{self.name}:{line}:{column}"


@dataclass(frozen=True)
class Argument(Source):
    """The value of an argument `key=value`; all of it stands at one place."""

    def place(self, index: int) -> str:  # noqa: ARG002  (an argument is short: naming it is enough)
        """The argument itself."""
        return f"argument {self.name!r}"


@dataclass(frozen=True)
class Spot:
    """A piece of a source, from `start` to before `end`."""

    source: Source
    start: int = 0
    end: int = 0

    @property
    def place(self) -> str:
        """Where it begins."""
        return self.source.place(self.start)

    def place_of(self, token: str, nth: int) -> str:
        """Where the nth occurrence of `token` in it stands; where it begins if it is written differently there."""
        index = self.start - 1
        for _ in range(nth + 1):
            index = self.source.text.find(token, index + 1, self.end)
            if index < 0:
                return self.place
        return self.source.place(index)


@dataclass(frozen=True)
class Hole:
    """What a text has in it that is known later: `${env:NAME}`, or `${job.id}` and its like.

    Attributes:
        place: where it was written.
    """

    kind: Literal["env", "job"]
    name: str
    place: str


@dataclass(frozen=True)
class Text:
    """A text with holes."""

    parts: tuple[str | Hole, ...]


@dataclass(frozen=True)
class Scalar:
    """One value. `written` is how it stands in the file, so that 3.10 stays 3.10 inside a text."""

    spot: Spot
    value: Plain | Text
    written: str


@dataclass(frozen=True)
class Items:
    """A list."""

    spot: Spot
    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Entry:
    """A key and its value."""

    key: Spot
    tree: Tree


@dataclass(frozen=True)
class Table:
    """A mapping."""

    spot: Spot
    entries: Mapping[str, Entry]


Tree = Scalar | Items | Table


@dataclass(frozen=True)
class Written:
    """A whole config by section, and where it begins."""

    entries: Mapping[str, Entry]
    start: Spot

    def tree(self, section: str) -> Tree | None:
        """The content of a section, None where it is not there or null."""
        entry = self.entries.get(section)
        return None if entry is None or is_null(entry.tree) else entry.tree

    def spot(self, section: str, *path: str | int) -> Spot:
        """Where a value stands; where its section does, or the config begins, if it is not there."""
        entry = self.entries.get(section)
        tree = at(entry.tree, path) if entry else None
        return tree.spot if tree and path else entry.key if entry else self.start


def at(tree: Tree | None, path: KeyPath) -> Tree | None:
    """What stands at `path` below `tree`, None where nothing does."""
    for step in path:
        if isinstance(tree, Table) and (entry := tree.entries.get(str(step))):
            tree = entry.tree
        elif isinstance(tree, Items) and str(step).isdecimal() and int(step) < len(tree.items):
            tree = tree.items[int(step)]
        else:
            return None
    return tree


def is_null(tree: Tree | None) -> bool:
    """Whether nothing is there, or a null."""
    return tree is None or (isinstance(tree, Scalar) and tree.value is None)


def plain(tree: Tree, fill: Callable[[Hole], str], literal: Callable[[str], str] = str) -> JsonValue:
    """The tree as JSON knows it.

    Args:
        tree: what to render.
        fill: what goes into a hole.
        literal: what becomes of any other text.
    """
    if isinstance(tree, Table):
        return {key: plain(entry.tree, fill, literal) for key, entry in tree.entries.items()}
    if isinstance(tree, Items):
        return [plain(item, fill, literal) for item in tree.items]
    if isinstance(tree.value, Text):
        return "".join(literal(part) if isinstance(part, str) else fill(part) for part in tree.value.parts)
    return literal(tree.value) if isinstance(tree.value, str) else tree.value


def holes(tree: Tree) -> Iterator[Hole]:
    """All holes in the tree."""
    if isinstance(tree, Table):
        for entry in tree.entries.values():
            yield from holes(entry.tree)
    elif isinstance(tree, Items):
        for item in tree.items:
            yield from holes(item)
    elif isinstance(tree.value, Text):
        yield from (part for part in tree.value.parts if isinstance(part, Hole))
