"""From a file, or the value of an argument, to a tree: YAML by ruamel, mistakes with their places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TextIO

from ruamel.yaml import YAML, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import RoundTripRepresenter

from tpux.config.document import Entry, Items, Plain, Scalar, Source, Spot, Table, Tree
from tpux.errors import ConfigError, Problem
from tpux.plugin.machines import JsonValue

_TAG = "tag:yaml.org,2002:"
_TEXTS = {"str", "timestamp", "value"}  # a date is a text here, and so is a bare `=`
_HALF = re.compile("[\ud800-\udfff]")  # an escape can bring it, and no file can hold it
_MOST_NODES = 100_000  # what a config with aliases may grow to


def read(path: Path) -> Source:
    """The config's text.

    Raises:
        ConfigError: the file is not there, not readable, or not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError([Problem(str(path), (error.strerror or str(error)).lower())]) from error
    try:
        return Source(str(path), content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = Source(str(path), before).place(len(before))
        problem = Problem(place, f"this is not UTF-8 (byte 0x{content[error.start]:02x})", "save the file as UTF-8")
        raise ConfigError([problem]) from error


def parse(source: Source, problems: list[Problem]) -> Tree | None:
    """The tree of a text, None where there is none; what is wrong with it is added to `problems`."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(source.text)
        return None if node is None else _Reader(source, yaml, problems).tree(node)
    except MarkedYAMLError as error:
        problems.append(_syntax(source, error))
    except ReaderError as error:
        message = f"the character U+{int(error.character):04X} is not allowed in YAML"
        problems.append(Problem(source.place(error.position), message))
    except RecursionError:
        problems.append(Problem(source.place(0), "this is nested too deep, or holds itself"))
    return None


class _Reader:
    def __init__(self, source: Source, yaml: YAML, problems: list[Problem]) -> None:
        self._source = source
        self._constructor = yaml.constructor
        self._problems = problems
        self._nodes = 0

    def tree(self, node: Node) -> Tree:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise RecursionError
        if isinstance(node, MappingNode):
            self._expect(node, "map")
            return Table(self._spot(node), self._entries(node))
        if isinstance(node, SequenceNode):
            self._expect(node, "seq")
            return Items(self._spot(node), tuple(self.tree(item) for item in node.value))
        if isinstance(node, ScalarNode):
            return Scalar(self._spot(node), self._value(node), str(node.value))
        raise TypeError(f"ruamel.yaml composed a {type(node).__name__}")

    def _entries(self, node: MappingNode) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            if _kind(key) == "merge":
                for base in value.value if isinstance(value, SequenceNode) else [value]:
                    merged = self._merge(base) | merged
                continue
            word = self._key(key)
            if word in entries:
                first = entries[word].key.place
                self._problem(key, f"the key {word!r} is here twice, first at {first}", "keep one of them")
            else:
                entries[word] = Entry(self._spot(key), self.tree(value))
        return {**entries, **{word: entry for word, entry in merged.items() if word not in entries}}

    def _merge(self, base: Node) -> dict[str, Entry]:
        if isinstance(base, MappingNode):
            return self._entries(base)
        self._problem(base, "<< takes a mapping, or a list of mappings")
        return {}

    def _key(self, key: Node) -> str:
        if not isinstance(key, ScalarNode):
            self._problem(key, "a key must be a text")
        elif _kind(key) not in _TEXTS:
            self._problem(key, f"a key must be a text, and {key.value!r} is none", f'quote it: "{key.value}"')
        return str(key.value)

    def _value(self, node: ScalarNode) -> Plain:
        kind = _kind(node)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return bool(self._constructor.construct_yaml_bool(node))
            if kind == "int":
                return int(self._constructor.construct_yaml_int(node))
            if kind == "float":
                return float(self._constructor.construct_yaml_float(node))
        except (ValueError, KeyError):  # an explicit tag on what it does not fit: `!!int x`
            self._problem(node, f"{node.value!r} is no {kind}")
        else:
            self._expect(node, *_TEXTS)
        if _HALF.search(node.value):
            self._problem(node, "this is half a character: \\ud800 to \\udfff stand for nothing alone")
        return str(node.value)

    def _expect(self, node: Node, *kinds: str) -> None:
        if _kind(node) not in kinds:
            self._problem(node, f"the tag {node.tag} is not known here", "write the value without it")

    def _problem(self, node: Node, message: str, hint: str = "") -> None:
        self._problems.append(Problem(self._spot(node).place, message, hint))

    def _spot(self, node: Node) -> Spot:
        return Spot(self._source, node.start_mark.index, node.end_mark.index)


def _kind(node: Node) -> str:
    return str(node.tag).removeprefix(_TAG)


def _syntax(source: Source, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = source.place(mark.index if mark else 0)
    if "'\\t'" in (error.problem or ""):
        return Problem(place, "a tab cannot indent YAML", "indent with spaces")
    message = ": ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if re.search("mapping values|cannot start any token|undefined alias", message):
        hint = "a text with one of : # @ % & * ` ! in it must be quoted"
    return Problem(place, f"this is not YAML: {message}", hint)


class _Representer(RoundTripRepresenter):
    """Scripts as blocks, null as a word."""


def _text(representer: RoundTripRepresenter, text: str) -> ScalarNode:
    printable = all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
    style = '"' if not printable else "|" if "\n" in text else None
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


def _null(representer: RoundTripRepresenter, _: None) -> ScalarNode:
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:null", "null")
    return node


_Representer.add_representer(str, _text)
_Representer.add_representer(type(None), _null)


def write(data: JsonValue, to: TextIO) -> None:
    """Write `data` to `to` as YAML that reads back as the same."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 4096  # a long line of a script stays one line
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(data, to)
