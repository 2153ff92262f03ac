"""`key=value` arguments after a config's name: each takes the place of what the config says."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from tpux.config.document import Argument, Entry, Items, Scalar, Spot, Table, Tree, Written, at, is_null
from tpux.config.interpolate import Interpolation
from tpux.config.validate import DEFAULT_ALLOCATOR, tpu_model
from tpux.config.yaml import parse
from tpux.errors import Problem, TpuxError
from tpux.plugin.known import did_you_mean
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import keys_of

_KEY = re.compile(r"[^\s.\[\]]+(?:\.[^\s.\[\]]+|\[\d+\])*")


class _Mistake(Exception):  # noqa: N818  (never leaves this file)
    pass


def override(root: Table, arguments: Sequence[str], sections: Collection[str], problems: list[Problem]) -> Table:
    """The config with the arguments applied, from the first to the last.

    Args:
        root: the config.
        arguments: each `section.key=value`; the value is read as YAML.
        sections: the words that are sections, whether the config has them or not.
        problems: takes the mistakes, located as `argument 'section.key=value'`.
    """
    for argument in arguments:
        key, equals, text = argument.partition("=")
        source = Argument(argument, text)
        steps = re.findall(r"[^.\[\]]+", key)
        if not equals or not _KEY.fullmatch(key):
            problems.append(Problem(source.place(0), "this is no section.key=value", "such as tpu.accelerator=v4-16"))
        elif steps[0] not in {*sections, *root.entries}:
            hint = did_you_mean(steps[0], {*sections, *root.entries})
            problems.append(Problem(source.place(0), f"there is no section {steps[0]!r}", hint))
        else:
            root = _with(root, steps, source, problems)
    return root


def _with(root: Table, steps: list[str], source: Argument, problems: list[Problem]) -> Table:
    spot = Spot(source, 0, len(source.text))
    mistakes = len(problems)
    value = parse(source, problems)
    if len(problems) > mistakes:
        return root
    try:
        changed = _put(root, steps, value or Scalar(spot, None, ""), spot)
    except _Mistake as mistake:
        problems.append(Problem(spot.place, str(mistake)))
        return root
    return changed if isinstance(changed, Table) else root


def _put(tree: Tree, steps: list[str], value: Tree, spot: Spot) -> Tree:
    """The same tree, with `value` at `steps`; mappings on the way there are made."""
    if not steps:
        return value
    step, *rest = steps
    if is_null(tree):
        tree = Table(spot, {})
    if isinstance(tree, Table):
        old = tree.entries.get(step)
        entry = Entry(
            old.key if old and rest else spot, _put(old.tree if old else Scalar(spot, None, ""), rest, value, spot)
        )
        return replace(tree, entries={**tree.entries, step: entry})
    if isinstance(tree, Items) and step.isdecimal() and int(step) < len(tree.items):
        at = int(step)
        changed = _put(tree.items[at], rest, value, spot)
        return replace(tree, items=(*tree.items[:at], changed, *tree.items[at + 1 :]))
    if isinstance(tree, Items):
        raise _Mistake(f"the list has {len(tree.items)} items, counted from 0: {step!r} is none of them")
    raise _Mistake(f"{step!r} cannot be set: what it belongs to is a single value in the config")


def drop_unused_tpu_keys(written: Written, file_root: Table, plugins: Plugins, warnings: list[Problem]) -> Written:
    """Drop the file's keys of the section `tpu` that an allocator named by an argument does not have.

    So `tpux run train.yaml tpu.allocation_mode=local` runs a config for a cloud on this machine.

    Args:
        written: the config with the arguments applied and all references resolved.
        file_root: the config without the arguments.
        plugins: they know the keys of both allocators.
        warnings: takes one that names the dropped keys.
    """
    tpu = written.tree("tpu")
    chosen = at(tpu, ("allocation_mode",))
    if not isinstance(tpu, Table) or chosen is None or not isinstance(chosen.spot.source, Argument):
        return written
    allocator, of_file = _allocator(tpu), _allocator(_tpu_of(file_root))
    try:
        accepted = keys_of(tpu_model(allocator, plugins))
    except TpuxError:  # reported where the allocator is selected
        return written
    extra = [key for key, entry in tpu.entries.items() if not isinstance(entry.key.source, Argument)]
    extra = [key for key in extra if key not in accepted]
    note, hint = "", ""
    try:
        extra = [key for key in extra if key in keys_of(tpu_model(of_file, plugins))]
    except TpuxError as error:
        note, hint = f" (not checked either: {error.message})", error.hint
    if not extra:
        return written
    names = ", ".join(f"tpu.{key}" for key in extra)
    message = f"ignored, because allocator {allocator!r} does not use them: {names}{note}"
    warnings.append(Problem(tpu.entries[extra[0]].key.place, message, hint))
    kept = replace(tpu, entries={key: entry for key, entry in tpu.entries.items() if key not in extra})
    return replace(written, entries={**written.entries, "tpu": replace(written.entries["tpu"], tree=kept)})


def _tpu_of(root: Table) -> Tree | None:
    return Interpolation(root, (), [], []).section("tpu") if "tpu" in root.entries else None


def _allocator(tpu: Tree | None) -> str:
    named = at(tpu, ("allocation_mode",))
    value = named.value if isinstance(named, Scalar) else None
    return value if isinstance(value, str) else DEFAULT_ALLOCATOR
