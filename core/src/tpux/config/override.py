"""Command-line arguments: `section.key=value` overrides a value of a config file, `key=value` is the program's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tpux.config.arguments import ARGV, SEPARATOR, path_of, value_of, words_after
from tpux.config.document import (
    Argument,
    Document,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    Source,
    Span,
    is_null,
    node_at,
)
from tpux.config.interpolate import Interpolation
from tpux.config.models import DEFAULT_ALLOCATOR, section_names, tpu_model, unknown_section_hint
from tpux.config.yaml import parse
from tpux.errors import Problem, TpuxError
from tpux.model.sections import keys_of
from tpux.plugin.manager import Plugins
from tpux.plugin.synonyms import key_hint

_KEY = re.compile(r"[^\s.\[\]]+(?:\.[^\s.\[\]]+|\[\d+\])*")


_OF_MACHINES = {"tpu": ("accelerator", "zone", "pricing")}
"""Keys that cost money where they are meant for the config, and go to the program."""


class _OverrideError(Exception):
    pass


def override(
    root: MappingNode, arguments: Sequence[str], plugins: Plugins, problems: list[Problem], warnings: list[Problem]
) -> tuple[MappingNode, tuple[str, ...]]:
    """Return the config with the arguments applied, from the first to the last, and those that are the program's.

    Args:
        root: the config.
        arguments: each `section.key=value`, `section.=value` for a whole section, or `key=value` for the program; the
            value is parsed as YAML. What follows `--` is the program's, too.
        plugins: the plugins, which have sections.
        problems: receives errors, located at `argument 'section.key=value'`.
        warnings: receives what may have been meant for the config.
    """
    sections, taken = section_names(plugins), list[str]()
    for number, argument in enumerate(arguments):
        if argument == SEPARATOR:
            words = arguments[number + 1 :]
            node = words_after(words, Argument(argument, ""))
            taken += words
            return as_sections(_set_node(root, ARGV, node, problems)), tuple(taken)
        key, equals, text = argument.partition("=")
        source = Argument(argument, text)
        path = re.findall(r"[^.\[\]]+", key)
        if equals and (place := path_of(key, root, {*sections, *root.entries})):
            taken.append(argument)
            if (
                hint := f"the section is {key}.=..., a key of it {key}.KEY="
                if key in sections
                else key_hint(path, _OF_MACHINES)
            ):
                message = f"{key}=... is an argument of the program, and changes nothing of the config"
                warnings.append(Problem(source.location(0), message, hint))
            root = as_sections(_set_node(root, place, value_of(source), problems))
        elif not equals or not _KEY.fullmatch(key.removesuffix(".")):
            hint = "for example tpu.accelerator=v4-16, or lr=0.1 for the program"
            problems.append(Problem(source.location(0), "expected section.key=value or key=value", hint))
        elif path[0] not in {*sections, *root.entries}:
            hint = unknown_section_hint(path, plugins)
            problems.append(Problem(source.location(0), f"unknown section {path[0]!r}", hint))
        else:
            root = as_sections(_apply(root, path, source, problems))
    return root, tuple(taken)


def as_sections(root: MappingNode) -> MappingNode:
    """Return the config with what jobman's configs write otherwise in the place where tpux has it.

    These are `command: SCRIPT` for `command: {cmd: SCRIPT}`, `tpu.acceleratorType`, and `loop` outside of `job`.
    """
    entries = dict(root.entries)
    command, tpu = entries.get("command"), entries.get("tpu")
    if command and isinstance(command.value, ScalarNode) and not is_null(command.value):
        section = MappingNode(command.value.span, {"cmd": Entry(command.key, command.value)})
        entries["command"] = replace(command, value=section)
    if tpu and isinstance(tpu.value, MappingNode) and "accelerator" not in tpu.value.entries:
        renamed = {"accelerator" if key == "acceleratorType" else key: each for key, each in tpu.value.entries.items()}
        entries["tpu"] = replace(tpu, value=replace(tpu.value, entries=renamed))
    job = entries.get("job", Entry(root.span, MappingNode(root.span, {})))
    if "loop" in entries and isinstance(job.value, MappingNode) and "loop" not in job.value.entries:
        keys = {**job.value.entries, "loop": entries.pop("loop")}
        entries["job"] = replace(job, value=replace(job.value, entries=keys))
    return replace(root, entries=entries)


def _apply(root: MappingNode, path: list[str], source: Argument, problems: list[Problem]) -> MappingNode:
    span = Span(source, 0, len(source.text))
    errors: list[Problem] = []
    value = parse(source, errors)
    problems += errors
    return root if errors else _set_node(root, path, value or ScalarNode(span, None, ""), problems)


def _set_node(root: MappingNode, path: Sequence[str], value: Node, problems: list[Problem]) -> MappingNode:
    try:
        changed = _set(root, [*path], value, value.span)
        return changed if isinstance(changed, MappingNode) else root
    except _OverrideError as error:
        problems.append(Problem(value.span.location, str(error)))
        return root


def _set(node: Node, path: list[str], value: Node, span: Span) -> Node:
    """Return a copy of the node with `value` at `path`; absent mappings on the way are created.

    Args:
        node: the document, or a part of it.
        path: the keys that lead to the value; empty for the node itself.
        value: what takes its place.
        span: the position of the override, which the created mappings get.
    """
    if not path:
        return value
    step, *rest = path
    if is_null(node):
        node = MappingNode(span, {})
    if isinstance(node, MappingNode):
        old = node.entries.get(step)
        key = old.key if old and rest else span
        changed = _set(old.value if old else ScalarNode(span, None, ""), rest, value, span)
        return replace(node, entries={**node.entries, step: Entry(key, changed)})
    if isinstance(node, SequenceNode) and step.isdecimal() and int(step) < len(node.items):
        at = int(step)
        changed = _set(node.items[at], rest, value, span)
        return replace(node, items=(*node.items[:at], changed, *node.items[at + 1 :]))
    if isinstance(node, SequenceNode):
        raise _OverrideError(f"no item {step!r}: the list has {len(node.items)} items, numbered from 0")
    raise _OverrideError(f"cannot set {step!r}: its parent is a single value in the config")


def drop_unused_tpu_keys(
    document: Document, file_root: MappingNode, plugins: Plugins, warnings: list[Problem]
) -> Document:
    """Drop the file's keys of the section `tpu` that an allocator set by an argument does not use.

    So `tpux run train.yaml tpu.allocation_mode=local` runs a config for a cloud on this machine. Keys that
    neither allocator knows remain, and are errors.

    Args:
        document: the config with the arguments applied and all references resolved.
        file_root: the config without the arguments.
        plugins: the plugins, which know the keys of both allocators.
        warnings: receives one warning that lists the dropped keys.
    """
    tpu = document.section("tpu")
    mode = node_at(tpu, ("allocation_mode",))
    if not isinstance(tpu, MappingNode) or mode is None or not isinstance(mode.span.source, Argument):
        return document
    file_tpu = Interpolation(file_root, (), [], []).section("tpu") if "tpu" in file_root.entries else None
    allocator, file_allocator = _allocator(tpu), _allocator(file_tpu)
    try:
        used = keys_of(tpu_model(allocator, plugins))
    except TpuxError:  # reported where the allocator is selected
        return document
    from_file = [key for key, entry in tpu.entries.items() if not isinstance(entry.key.source, Argument)]
    unused = [key for key in from_file if key not in used]
    note, hint = "", ""
    try:
        known = keys_of(tpu_model(file_allocator, plugins))
        unused = [key for key in unused if key in known]
    except TpuxError as error:
        note, hint = f" (and not checked: {error.message})", error.hint
    if not unused:
        return document
    message = f"keys not used by allocator {allocator!r} are ignored: {', '.join(f'tpu.{key}' for key in unused)}{note}"
    warnings.append(Problem(tpu.entries[unused[0]].key.location, message, hint))
    kept = replace(tpu, entries={key: entry for key, entry in tpu.entries.items() if key not in unused})
    return replace(document, entries={**document.entries, "tpu": replace(document.entries["tpu"], value=kept)})


def drop_unused_defaults(
    root: MappingNode, arguments: Sequence[str], sources: Sequence[Source], plugins: Plugins
) -> MappingNode:
    """Drop the keys of `tpu` that settings have and the config's allocator does not: they are for other configs."""
    if not sources or not isinstance(tpu := root.entries["tpu"].value if "tpu" in root.entries else None, MappingNode):
        return root
    given = [word.partition("=")[2] for word in arguments if word.startswith("tpu.allocation_mode=")]
    try:
        used = keys_of(tpu_model(given[-1] if given else _allocator(tpu), plugins))
    except TpuxError:  # reported where the allocator is selected
        return root
    kept = {key: entry for key, entry in tpu.entries.items() if key in used or entry.key.source not in sources}
    return replace(
        root, entries={**root.entries, "tpu": replace(root.entries["tpu"], value=replace(tpu, entries=kept))}
    )


def _allocator(tpu: Node | None) -> str:
    mode = node_at(tpu, ("allocation_mode",))
    value = mode.value if isinstance(mode, ScalarNode) else None
    return value if isinstance(value, str) else DEFAULT_ALLOCATOR
