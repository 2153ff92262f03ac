"""Arguments of the program: which words of a command line they are, and how its script gets them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux.config.document import (
    Argument,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    Span,
    Template,
    is_null,
    node_at,
)
from tpux.errors import Problem

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.model.sections import CommandSection

SEPARATOR = "--"
"""What follows it on a command line is the program's, as it is."""
ARGS = ("command", "args")
ARGV = ("command", "argv")
ARGUMENT_NAME = re.compile(r"[^\s=\0-][^\s=\0]*")
_FILE_STYLE = "json"


def joined(given: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return overrides of a config followed by later ones; the later words after `--` replace the former."""
    (words, rest), (more, instead) = _split(given), _split(later)
    return [*words, *more, *(instead or rest)]


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    return words[:at], words[at:]


def path_of(key: str, root: MappingNode, sections: Collection[str]) -> tuple[str, ...] | None:
    """Return where the config has the argument of the program that a key of the command line names; None if none.

    A key without a dot is always the program's. With one, its first segment decides: a section is the config's, and
    what is one edit away from it is left to the config, which reports it.

    Args:
        key: the key.
        root: the config.
        sections: the names of all sections.
    """
    first, dot, _ = key.partition(".")
    if not first or not ARGUMENT_NAME.fullmatch(key):
        return None
    if dot and (first in sections or any(_is_one_edit(first, name) for name in sections)):
        return None
    command = root.entries.get(ARGS[0])
    nested = dot and command and isinstance(node_at(command.value, (ARGS[1], first)), MappingNode)
    return (*ARGS, *key.split(".")) if nested else (*ARGS, key)


def _is_one_edit(word: str, name: str) -> bool:
    """Return whether two words differ by one letter: missing, added, replaced, or swapped with the next."""
    if word == name or abs(len(word) - len(name)) > 1:
        return False
    at = next((index for index, (one, other) in enumerate(zip(word, name, strict=False)) if one != other), None)
    if at is None:
        return True
    rest, other = word[at:], name[at:]
    swapped = len(rest) > 1 and rest[:2] == other[1::-1] and rest[2:] == other[2:]
    return swapped or rest[1:] == other[1:] or rest[1:] == other or rest == other[1:]


def value_of(source: Argument) -> Node:
    """Return the value of an argument of the program. What is not YAML is text, as is every word without quotes."""
    from tpux.config.yaml import parse  # it imports ruamel

    text, problems = source.text, list[Problem]()
    span = Span(source, 0, len(text))
    node = parse(source, problems)
    is_text = node is None or is_null(node) or (isinstance(node, ScalarNode) and isinstance(node.value, str))
    if problems or (is_text and text and text[0] not in "\"'"):
        null = text.strip() in {"", "null", "~"} and not problems
        return ScalarNode(span, None if null else text, text)
    return node or ScalarNode(span, None, "")


def words_after(words: Sequence[str], source: Argument) -> SequenceNode:
    """Return words that no reference is looked for in."""
    span = Span(source, 0, 0)
    return SequenceNode(span, tuple(ScalarNode(span, Template((word,)), word) for word in words))


def as_written(command: Node) -> Node:
    """Return the section `command` with `args` in which a nested key has dots, and 1e-4 and on remain these texts.

    For the style `json` the values keep their types and their structure. A value that is empty is left out.
    """
    if not isinstance(command, MappingNode) or not isinstance(args := node_at(command, ARGS[1:]), MappingNode):
        return command
    style = node_at(command, ("args_style",))
    if isinstance(style, ScalarNode) and style.value == _FILE_STYLE:
        kept = _without_empty(args)
    else:
        kept = replace(args, entries=dict(_flat(args)))
    entry = command.entries[ARGS[1]]
    return replace(command, entries={**command.entries, ARGS[1]: replace(entry, value=kept)})


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is None and not node.raw


def _without_empty(node: MappingNode) -> MappingNode:
    entries = {
        name: replace(entry, value=_without_empty(entry.value)) if isinstance(entry.value, MappingNode) else entry
        for name, entry in node.entries.items()
        if not _is_empty(entry.value)
    }
    return replace(node, entries=entries)


def _flat(node: MappingNode) -> list[tuple[str, Entry]]:
    found: list[tuple[str, Entry]] = []
    for name, entry in node.entries.items():
        value = entry.value
        if isinstance(value, MappingNode) and not isinstance(value.span.source, Argument):
            found += [(f"{name}.{key}", inner) for key, inner in _flat(value)]
        elif isinstance(value, ScalarNode):
            is_text = isinstance(value.value, (str, Template))
            if not _is_empty(value):
                found.append((name, entry if is_text else replace(entry, value=replace(value, value=value.raw))))
        elif isinstance(source := value.span.source, Argument) and "${" not in source.text:
            found.append((name, replace(entry, value=ScalarNode(value.span, source.text, source.text))))
        else:
            found.append((name, entry))
    return found


def program_words(section: CommandSection, substitute: Callable[[str], str] = str) -> list[str]:
    """Return the words of a command line that are the program's arguments.

    Args:
        section: the section `command`.
        substitute: replaces the references in the value of one, but not in what followed `--`.
    """
    words: list[str] = []
    if section.args_style != _FILE_STYLE:
        for key, value in section.args.items():
            text = substitute(value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))
            words += [part.format(key=key, value=text) for part in section.args_style.split(" ")]
    return [*words, *section.argv]


def argument_text(section: CommandSection, substitute: Callable[[str], str]) -> str:
    """Return `program_words` quoted for a shell."""
    return " ".join(map(shlex.quote, program_words(section, substitute)))


def file_lines(section: CommandSection, substitute: Callable[[str], str], variable: str) -> str:
    """Return the lines of a script that write the arguments to a file, for the style `json`; "" for any other.

    Args:
        section: the section `command`.
        substitute: replaces the references in the texts.
        variable: the variable that gets the path of the file.
    """
    if section.args_style != _FILE_STYLE:
        return ""
    text = shlex.quote(json.dumps(_substituted(section.args, substitute)))
    path = f'{variable}=$(mktemp "${{TMPDIR:-/tmp}}/tpux-args-XXXXXX")'
    return f"{path} && printf '%s\\n' {text} >\"${variable}\" && export {variable} || exit 74\n"


def _substituted(value: object, substitute: Callable[[str], str]) -> object:
    if isinstance(value, dict):
        return {key: _substituted(item, substitute) for key, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, substitute) for item in value]
    return substitute(value) if isinstance(value, str) else value


def describe_arguments(section: Mapping[str, JsonValue]) -> str:
    """Return the arguments of a stored section `command` for people, as `key=value`; "" if there are none."""
    args, argv = section.get("args"), section.get("argv")
    shown = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in (args.items() if isinstance(args, dict) else ())
    ]
    return shlex.join([*shown, *map(str, argv if isinstance(argv, list) else ())])
