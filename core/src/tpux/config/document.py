"""A parsed config: every key and value together with its position in the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

PlainValue = bool | int | float | str | None
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """A text and its name: the config file."""

    name: str
    text: str

    def location(self, index: int) -> str:
        """Return the position of the character at `index` as `file:line:column`, both counted from 1."""
        line = self.text.count("\n", 0, index) + 1
        column = index - self.text.rfind("\n", 0, index)
        return f"{self.name}:{line}:{column}"


@dataclass(frozen=True)
class Argument(Source):
    """The value of a command-line argument `key=value`; positions within it are not distinguished."""

    def location(self, index: int) -> str:  # noqa: ARG002  (an argument is short: naming it is enough)
        """Return the argument itself."""
        return f"argument {self.name!r}"


@dataclass(frozen=True)
class Span:
    """A range of a source, from `start` to before `end`."""

    source: Source
    start: int = 0
    end: int = 0

    @property
    def location(self) -> str:
        """The position of its start."""
        return self.source.location(self.start)

    def location_of(self, token: str, nth: int) -> str:
        """Return the position of the nth occurrence of `token`, or of the start if escapes hide the token."""
        index = self.start - 1
        for _ in range(nth + 1):
            index = self.source.text.find(token, index + 1, self.end)
            if index < 0:
                return self.location
        return self.source.location(index)


@dataclass(frozen=True)
class Placeholder:
    """A part of a string whose value is not known yet: `${env:NAME}`, `${job.id}` and the like.

    Attributes:
        location: its position in the source.
    """

    kind: Literal["env", "job"]
    name: str
    location: str


@dataclass(frozen=True)
class Template:
    """A string with placeholders."""

    parts: tuple[str | Placeholder, ...]


@dataclass(frozen=True)
class ScalarNode:
    """A single value. `raw` is its text in the source, so that 3.10 remains 3.10 inside a string."""

    span: Span
    value: PlainValue | Template
    raw: str


@dataclass(frozen=True)
class SequenceNode:
    """A list."""

    span: Span
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Entry:
    """A key and its value."""

    key: Span
    value: Node


@dataclass(frozen=True)
class MappingNode:
    """A mapping."""

    span: Span
    entries: Mapping[str, Entry]


Node = ScalarNode | SequenceNode | MappingNode


@dataclass(frozen=True)
class Document:
    """A whole config by section, and its start."""

    entries: Mapping[str, Entry]
    start: Span

    def section(self, name: str) -> Node | None:
        """Return the content of a section, None if it is absent or null."""
        entry = self.entries.get(name)
        return None if entry is None or is_null(entry.value) else entry.value

    def span(self, *path: str | int) -> Span:
        """Return the span of a value; if it is absent, that of its section's name or of the config's start."""
        entry, path = self.entries.get(str(path[0])), path[1:]
        node = node_at(entry.value, path) if entry else None
        return node.span if node and path else entry.key if entry else self.start


def node_at(node: Node | None, path: KeyPath) -> Node | None:
    """Return the node at `path` below `node`, None if there is none."""
    for step in path:
        if isinstance(node, MappingNode) and (entry := node.entries.get(str(step))):
            node = entry.value
        elif isinstance(node, SequenceNode) and str(step).isdecimal() and int(step) < len(node.items):
            node = node.items[int(step)]
        else:
            return None
    return node


def is_null(node: Node | None) -> bool:
    """Return True if the node is absent or null."""
    return node is None or (isinstance(node, ScalarNode) and node.value is None)


def to_json(node: Node, substitute: Callable[[Placeholder], str], literal: Callable[[str], str] = str) -> JsonValue:
    """Return the node as JSON.

    Args:
        node: the node.
        substitute: returns the text that replaces a placeholder.
        literal: converts all other strings.
    """
    if isinstance(node, MappingNode):
        return {key: to_json(entry.value, substitute, literal) for key, entry in node.entries.items()}
    if isinstance(node, SequenceNode):
        return [to_json(item, substitute, literal) for item in node.items]
    if isinstance(node.value, Template):
        return "".join(literal(part) if isinstance(part, str) else substitute(part) for part in node.value.parts)
    return literal(node.value) if isinstance(node.value, str) else node.value


def location_of(node: Node, value: str) -> str:
    """Return the position of the first value below the node that is this string; "" if there is none."""
    if isinstance(node, ScalarNode):
        return node.span.location if node.value == value else ""
    below = [entry.value for entry in node.entries.values()] if isinstance(node, MappingNode) else node.items
    return next(filter(None, (location_of(each, value) for each in below)), "")


def nodes_at(node: Node, keys: Sequence[str]) -> Iterator[Node]:
    """Yield the values at a path of keys below the node; a list on the path stands for each of its items.

    `a.0` is the first item of a.
    """
    if isinstance(node, SequenceNode) and keys:
        for place, item in enumerate(node.items):
            if not keys[0].isdecimal():
                yield from nodes_at(item, keys)
            elif int(keys[0]) == place:
                yield from nodes_at(item, keys[1:])
    elif not keys:
        yield node
    elif isinstance(node, MappingNode) and (entry := node.entries.get(keys[0])):
        yield from nodes_at(entry.value, keys[1:])


def scalars(node: Node) -> Iterator[ScalarNode]:
    """Yield all single values below the node."""
    if isinstance(node, ScalarNode):
        yield node
    else:
        below = [entry.value for entry in node.entries.values()] if isinstance(node, MappingNode) else node.items
        for each in below:
            yield from scalars(each)


def placeholders(node: Node) -> Iterator[Placeholder]:
    """Yield all placeholders below the node."""
    for scalar in scalars(node):
        if isinstance(scalar.value, Template):
            yield from (part for part in scalar.value.parts if isinstance(part, Placeholder))
