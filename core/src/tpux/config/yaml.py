"""Read YAML (by ruamel) into nodes with positions, and write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TextIO

from ruamel.yaml import YAML, nodes
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import RoundTripRepresenter

from tpux.config.document import Entry, MappingNode, Node, PlainValue, ScalarNode, SequenceNode, Source, Span
from tpux.errors import ConfigError, Problem
from tpux.model.json import JsonValue

_TAG_PREFIX = "tag:yaml.org,2002:"
_STRING_TAGS = {"str", "timestamp", "value"}  # YAML timestamps and the `=` value tag are read as plain strings
_SURROGATE = re.compile("[\ud800-\udfff]")  # lone surrogates (from \u escapes) cannot be encoded as UTF-8
_MAX_NODES = 100_000  # limits what aliases of aliases expand to


def read(path: Path) -> Source:
    """Return the text of a config file.

    Raises:
        ConfigError: the file does not exist, is not readable, or is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError([Problem(str(path), "file not found")]) from error
    except OSError as error:
        raise ConfigError([Problem(str(path), (error.strerror or str(error)).lower())]) from error
    try:
        return Source(str(path), content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        location = Source(str(path), before).location(len(before))
        message = f"not valid UTF-8 (byte 0x{content[error.start]:02x})"
        raise ConfigError([Problem(location, message, "save the file as UTF-8")]) from error


def parse(source: Source, problems: list[Problem]) -> Node | None:
    """Return the root node of a text, None if it is empty or invalid; append errors to `problems`."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(source.text)
        return None if node is None else _Converter(source, yaml, problems).convert(node)
    except MarkedYAMLError as error:
        problems.append(_syntax_problem(source, error))
    except ReaderError as error:
        message = f"character U+{int(error.character):04X} is not allowed in YAML"
        problems.append(Problem(source.location(error.position), message))
    except _TooManyValuesError:
        message = f"more than {_MAX_NODES} values, counting those that aliases stand for"
        problems.append(Problem(source.location(0), message))
    except RecursionError:
        problems.append(Problem(source.location(0), "nested too deeply, or an alias contains itself"))
    return None


class _TooManyValuesError(Exception):
    pass


class _Converter:
    """Converts ruamel's nodes to the config's; appends errors to `problems`."""

    def __init__(self, source: Source, yaml: YAML, problems: list[Problem]) -> None:
        self._source = source
        self._constructor = yaml.constructor
        self._problems = problems
        self._count = 0

    def convert(self, node: nodes.Node) -> Node:
        self._count += 1
        if self._count > _MAX_NODES:
            raise _TooManyValuesError
        if isinstance(node, nodes.MappingNode):
            self._expect_tag(node, "map")
            return MappingNode(self._span(node), self._entries(node))
        if isinstance(node, nodes.SequenceNode):
            self._expect_tag(node, "seq")
            return SequenceNode(self._span(node), tuple(self.convert(item) for item in node.value))
        if isinstance(node, nodes.ScalarNode):
            return ScalarNode(self._span(node), self._value(node), str(node.value))
        raise TypeError(f"ruamel.yaml composed a {type(node).__name__}")

    def _entries(self, node: nodes.MappingNode) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            if _tag(key) == "merge":
                for base in value.value if isinstance(value, nodes.SequenceNode) else [value]:
                    merged = self._merge(base) | merged
                continue
            name = self._key(key)
            if name in entries:
                first = entries[name].key.location
                self._problem(key, f"duplicate key {name!r}, first at {first}", "remove one of them")
            else:
                entries[name] = Entry(self._span(key), self.convert(value))
        return {**entries, **{name: entry for name, entry in merged.items() if name not in entries}}

    def _merge(self, base: nodes.Node) -> dict[str, Entry]:
        if isinstance(base, nodes.MappingNode):
            return self._entries(base)
        self._problem(base, "<< expects a mapping or a list of mappings")
        return {}

    def _key(self, key: nodes.Node) -> str:
        if not isinstance(key, nodes.ScalarNode):
            self._problem(key, "a key must be a string")
        elif _tag(key) not in _STRING_TAGS:
            self._problem(key, f"a key must be a string; {key.value!r} is not", f'quote it: "{key.value}"')
        return str(key.value)

    def _value(self, node: nodes.ScalarNode) -> PlainValue:
        tag = _tag(node)
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return bool(self._constructor.construct_yaml_bool(node))
            if tag == "int":
                return int(self._constructor.construct_yaml_int(node))
            if tag == "float":
                return float(self._constructor.construct_yaml_float(node))
        except (ValueError, KeyError):  # an explicit tag on an unfit value: `!!int x`
            self._problem(node, f"{node.value!r} is not a valid {tag}")
        else:
            self._expect_tag(node, *_STRING_TAGS)
        if _SURROGATE.search(node.value):
            self._problem(node, "lone surrogates (\\ud800 to \\udfff) are not characters")
        if "\0" in node.value:
            self._problem(node, "a value cannot contain a NUL (\\0)", "no script, variable or path can")
        return str(node.value)

    def _expect_tag(self, node: nodes.Node, *tags: str) -> None:
        if _tag(node) not in tags:
            self._problem(node, f"unknown tag {node.tag}", "remove the tag")

    def _problem(self, node: nodes.Node, message: str, hint: str = "") -> None:
        self._problems.append(Problem(self._span(node).location, message, hint))

    def _span(self, node: nodes.Node) -> Span:
        return Span(self._source, node.start_mark.index, node.end_mark.index)


def _tag(node: nodes.Node) -> str:
    return str(node.tag).removeprefix(_TAG_PREFIX)


def _syntax_problem(source: Source, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    location = source.location(mark.index if mark else 0)
    if "'\\t'" in (error.problem or ""):
        return Problem(location, "YAML cannot be indented with tabs", "indent with spaces")
    message = ": ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if re.search("mapping values|cannot start any token|undefined alias", message):
        hint = "quote a string that contains one of : # @ % & * ` !"
    return Problem(location, f"invalid YAML: {message}", hint)


class _Representer(RoundTripRepresenter):
    """Writes multi-line strings as blocks, and null as `null`."""


def _string(representer: RoundTripRepresenter, text: str) -> nodes.ScalarNode:
    printable = all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
    style = '"' if not printable else "|" if "\n" in text else None
    node: nodes.ScalarNode = representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


def _null(representer: RoundTripRepresenter, _: None) -> nodes.ScalarNode:
    node: nodes.ScalarNode = representer.represent_scalar("tag:yaml.org,2002:null", "null")
    return node


_Representer.add_representer(str, _string)
_Representer.add_representer(type(None), _null)


def write(data: JsonValue, stream: TextIO) -> None:
    """Write `data` as YAML that reads back as the same data."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 4096  # a long line of a script stays one line
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(data, stream)
