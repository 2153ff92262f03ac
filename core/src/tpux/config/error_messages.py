"""pydantic's errors about a section, as problems: what is wrong, where, and how to mend it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from tpux.config.document import Argument, Items, Scalar, Spot, Table, Tree
from tpux.errors import Problem
from tpux.plugin.known import did_you_mean
from tpux.plugin.sections import keys_of, names_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Explainer:
    """Explains what is wrong with one section.

    Args:
        word: the section's name.
        model: what it must be.
        tree: what was written, None where the config has none.
        key: where the section's name stands, or what asks for it.
    """

    def __init__(self, word: str, model: type[BaseModel], tree: Tree | None, key: Spot) -> None:
        self._word = word
        self._model = model
        self._tree = tree
        self._key = key

    def problems(self, errors: Sequence[ErrorDetails]) -> list[Problem]:
        """One problem a place: the branches of a union each have an error, of which the deepest one counts."""
        by_path: dict[tuple[str, ...], list[ErrorDetails]] = {}
        for error in errors:
            by_path.setdefault(self._path(error), []).append(error)
        paths = [path for path in by_path if not any(other[: len(path)] == path and other != path for other in by_path)]
        return [self._problem(path, by_path[path]) for path in paths]

    def _path(self, error: ErrorDetails) -> tuple[str, ...]:
        """The keys and indices of `loc` that the config has; labels of a union's branches are left out."""
        path: list[str] = []
        tree = self._tree
        for step in error["loc"]:
            if isinstance(tree, Table) and step in tree.entries:
                tree = tree.entries[str(step)].tree
            elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.items):
                tree = tree.items[step]
            else:
                continue
            path.append(str(step))
        if error["type"] == "missing":
            path.append(str(error["loc"][-1]))
        return tuple(path)

    def _problem(self, path: tuple[str, ...], errors: list[ErrorDetails]) -> Problem:
        key, tree = self._find(path)
        if errors[0]["type"] in {"extra_forbidden", "missing"} or errors[0]["loc"][-1:] == ("[key]",):
            message, hint = self._about_key(path, errors)
            return Problem(key.place, message, hint)
        message, hint = self._about_value(tree, errors)
        return Problem((tree.spot if tree else key).place, f"{self._name(path)} {message}", hint)

    def _about_key(self, path: tuple[str, ...], errors: list[ErrorDetails]) -> tuple[str, str]:
        kind = errors[0]["type"]
        model = _model_at(self._model, path[:-1])
        fields = model.model_fields if model else {}
        if kind == "missing":
            empty = " (its section is empty)" if self._tree is None else ""
            described = fields[path[-1]].description if path[-1] in fields else None
            return f"{self._name(path)} is missing{empty}", described or ""
        if kind == "extra_forbidden":
            keys = keys_of(model) if model else []
            known = f"the keys are {', '.join(keys)}" if keys else ""
            return f"there is no key {self._name(path)!r}", did_you_mean(path[-1], keys) or known
        return f"{path[-1]!r} is no key of {self._name(path[:-1])}", _expected(path[-1], errors)

    def _about_value(self, tree: Tree | None, errors: list[ErrorDetails]) -> tuple[str, str]:
        kinds = {error["type"] for error in errors}
        if not isinstance(tree, Scalar):
            typed = tree is not None and isinstance(tree.spot.source, Argument) and "string_type" in kinds
            return _wanted(errors), "the value is read as YAML: give it quotes of its own" if typed else ""
        if tree.value is None:
            return "is empty", f"it {_wanted(errors)}"
        if tree.value == "" and "string_too_short" in kinds:
            return "is empty", ""
        if "string_type" in kinds:
            kind = "true or false" if isinstance(tree.value, bool) else "a number"
            return f"must be a text, and {tree.written} without quotes is {kind}", f'quote it: "{tree.written}"'
        return _wanted(errors), _expected(tree.value, errors) if isinstance(tree.value, str) else ""

    def _name(self, path: tuple[str, ...]) -> str:
        return ".".join((self._word, *path))

    def _find(self, path: tuple[str, ...]) -> tuple[Spot, Tree | None]:
        """Where the last key of `path` stands, or the nearest one above it that the config has; and its value."""
        key, tree = self._key, self._tree
        for step in path:
            if isinstance(tree, Table) and step in tree.entries:
                key, tree = tree.entries[step].key, tree.entries[step].tree
            elif isinstance(tree, Items) and step.isdecimal():
                key, tree = tree.items[int(step)].spot, tree.items[int(step)]
            else:
                return key, None
        return key, tree


def _model_at(model: type[BaseModel] | None, path: Sequence[str]) -> type[BaseModel] | None:
    """The model of what stands at `path`, None where it has none."""
    for step in path:
        if model is None or step.isdecimal():
            continue
        fields = [field for name, field in model.model_fields.items() if step in names_of(name, field)]
        model = _model_in(fields[0].annotation) if fields else None
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


_WANTED = {
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def _wanted(errors: Sequence[ErrorDetails]) -> str:
    """What the errors of one place ask for, in one sentence."""
    wanted = []
    for error in errors:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if error["type"] in _WANTED or message.startswith("Input should be "):
            wanted.append(_WANTED.get(error["type"], message.removeprefix("Input should be ")))
        else:
            return f"is not right: {message}"
    return "must be " + " or ".join(dict.fromkeys(wanted))


def _expected(word: str, errors: Sequence[ErrorDetails]) -> str:
    choices = [
        choice for error in errors for choice in re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected")))
    ]
    return did_you_mean(word, choices)
