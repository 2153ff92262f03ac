"""`key=value` arguments after a config's name: each takes the place of what the config says."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from tpux.config.document import Argument, Entry, Items, Scalar, Spot, Table, Tree, is_null
from tpux.config.yaml import parse
from tpux.errors import Problem
from tpux.plugin.known import did_you_mean

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
