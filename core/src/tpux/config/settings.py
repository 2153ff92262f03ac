"""Settings of a user and of a machine: `defaults` below configs, `aliases` of words, and how data are displayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.config.document import MappingNode, Node, ScalarNode, SequenceNode, Source, is_null
from tpux.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

PARTS = ("defaults", "aliases", "display")
COLOURS = {"always": "CLICOLOR_FORCE", "auto": "", "never": "NO_COLOR"}
"""The variable that says the same as each value of `display.colours`; one of those in the environment precedes it."""


@dataclass(frozen=True)
class Settings:
    """What the files of settings say, from the machine's to the user's, whose values take precedence.

    Attributes:
        sources: the files.
        defaults: the sections that are merged below a config; None if there are none.
        aliases: the keys that words of the command line stand for.
        display: `time_zone`, `columns` and `colours`, those that are set.
    """

    sources: tuple[Source, ...]
    defaults: MappingNode | None
    aliases: dict[str, str]
    display: dict[str, str]


def read_files() -> list[Source]:
    """Return the files of settings that exist.

    Raises:
        ConfigError: one cannot be read.
    """
    from tpux.config.yaml import read

    return [read(path) for path in env.settings_files() if path.exists()]


def read_settings(sources: Sequence[Source], problems: list[Problem]) -> Settings:
    """Return what files of settings say; append errors to `problems`."""
    from tpux.config.yaml import parse

    defaults: Node | None = None
    aliases: dict[str, str] = {}
    display: dict[str, str] = {}
    for source in sources:
        root = parse(source, problems)
        if root is not None and not isinstance(root, MappingNode) and not is_null(root):
            problems.append(
                Problem(root.span.location, "settings must be a mapping", "for example aliases: {lr: a.lr}")
            )
        for name, entry in root.entries.items() if isinstance(root, MappingNode) else ():
            where = entry.key.location
            if name not in PARTS:
                problems.append(Problem(where, f"unknown setting {name!r}", f"the settings are {', '.join(PARTS)}"))
            elif is_null(entry.value):
                continue
            elif not isinstance(entry.value, MappingNode):
                problems.append(Problem(where, f"{name} must be a mapping"))
            elif name == "defaults":
                defaults = entry.value if defaults is None else merge(defaults, entry.value)
            elif name == "aliases":
                aliases |= _aliases(entry.value, problems)
            else:
                display |= _display(entry.value, problems)
    return Settings(tuple(sources), defaults if isinstance(defaults, MappingNode) else None, aliases, display)


def _aliases(node: MappingNode, problems: list[Problem]) -> dict[str, str]:
    found = {}
    for name, entry in node.entries.items():
        if isinstance(entry.value, ScalarNode) and isinstance(entry.value.value, str) and "=" not in entry.value.value:
            found[name] = entry.value.value
        else:
            problems.append(Problem(entry.key.location, f"alias {name!r} must stand for a key, such as tpu.zone"))
    return found


def _display(node: MappingNode, problems: list[Problem]) -> dict[str, str]:
    from zoneinfo import ZoneInfo

    from tpux.config.document import to_json

    found = {}
    for name, entry in node.entries.items():
        value, hint = to_json(entry.value, str), ""
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if name not in {"time_zone", "columns", "colours"}:
            hint = "the settings are time_zone, columns and colours"
        elif name == "colours" and text not in COLOURS:
            hint = f"write {', '.join(COLOURS)}"
        elif name == "time_zone":
            try:
                ZoneInfo(text)
            except (ValueError, OSError, KeyError):
                hint = "write one such as UTC or Europe/Berlin"
        if hint:
            problems.append(Problem(entry.key.location, f"display.{name}: {text} is not valid", hint))
        else:
            found[name] = text
    return found


def leaves(value: JsonValue, *path: str) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    """Yield each value below a mapping, with the keys that lead there."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, *path, name)
    else:
        yield path, value


def merge(below: Node, above: Node) -> Node:
    """Return two values merged: mappings key by key, of anything else the upper one."""
    if not isinstance(below, MappingNode) or not isinstance(above, MappingNode):
        return above
    entries = dict(below.entries)
    for name, entry in above.entries.items():
        old = entries.get(name)
        entries[name] = entry if old is None else replace(entry, value=merge(old.value, entry.value))
    return replace(above, entries=entries)


def with_alias(word: str, aliases: dict[str, str]) -> str:
    """Return a word of the command line with what its key stands for."""
    key, equals, value = word.partition("=")
    return f"{aliases[key]}={value}" if equals and key in aliases else word


# --- the commands -------------------------------------------------------------------------------


def values(sources: Sequence[Source]) -> dict[str, tuple[JsonValue, str]]:
    """Return each value with its position, by key.

    Raises:
        ConfigError: a file is not valid.
    """
    from tpux.config.yaml import parse

    problems: list[Problem] = []
    read_settings(sources, problems)
    if problems:
        raise ConfigError(problems)
    found: dict[str, tuple[JsonValue, str]] = {}
    for source in sources:
        root = parse(source, problems)
        found |= dict(_leaves(root, "")) if root is not None else {}
    return found


def _leaves(node: Node, key: str) -> Iterator[tuple[str, tuple[JsonValue, str]]]:
    from tpux.config.document import to_json

    if isinstance(node, MappingNode):
        for name, entry in node.entries.items():
            yield from _leaves(entry.value, f"{key}.{name}" if key else name)
    elif isinstance(node, (ScalarNode, SequenceNode)):
        yield key, (to_json(node, str), node.span.location)


def changed(key: str, text: str | None) -> tuple[Path, bytes]:
    """Return the user's file, and its content with another value or without one. Comments remain.

    Args:
        key: its key, such as `defaults.tpu.zone`.
        text: the value as YAML; None removes the key.

    Raises:
        UsageError: the key is none of a setting, or is not there.
        ConfigError: the value or the file is not valid.
    """
    from io import StringIO

    from ruamel.yaml import YAML

    from tpux.config.document import Argument
    from tpux.config.yaml import parse, read

    *path, last = key.split(".")
    if not path or path[0] not in PARTS or not all((*path, last)):
        hint = f"for example defaults.{key}" if key else "for example defaults.tpu.zone or aliases.lr"
        raise UsageError(f"{key!r} is no key of a setting", hint=hint)
    file, problems = env.settings_files()[-1], list[Problem]()
    yaml = YAML()
    yaml.width = 4096
    root = (yaml.load(read(file).text) if file.exists() else None) or {}
    parent = root
    for step in path:
        if text is None and step not in parent:
            raise UsageError(f"{key} is not set in {file}")
        if parent.get(step) is None:
            parent[step] = {}
        parent = parent[step]
        if not isinstance(parent, dict):
            raise UsageError(f"{key}: {step} has a single value in {file}")
    if text is None:
        if last not in parent:
            raise UsageError(f"{key} is not set in {file}")
        del parent[last]
    else:
        parse(Argument(f"{key} {text}", text), problems)
        parent[last] = None if problems else YAML().load(text)
    written = StringIO()
    yaml.dump(root, written)
    read_settings([Source(str(file), written.getvalue())], problems)
    if problems:
        raise ConfigError(problems)
    return file, written.getvalue().encode()
