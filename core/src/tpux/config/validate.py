"""A section against its model: pydantic's errors become problems with their places."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tpux.config.tree import Items, Scalar, Spot, Table, Tree
from tpux.errors import Problem
from tpux.plugins.find import reason
from tpux.plugins.known import did_you_mean
from tpux.sections import Section

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from tpux.machines import JsonValue

log = logging.getLogger(__name__)


def validate(
    word: str,
    model: type[Section],
    data: JsonValue,
    tree: Tree | None,
    *,
    key: Spot,
    context: Mapping[str, object],
    problems: list[Problem],
) -> Section | None:
    """The section as its model; what of it is valid where not all is, None where nothing is.

    What is valid says what else to look at, so that all mistakes are found at once.

    Args:
        word: the section's name.
        model: what it must be.
        data: its content, `{}` where the config has none.
        tree: the same as it was written, None where the config has none.
        key: where the section's name stands, or what asks for it.
        context: what `sections.local_file` is told.
        problems: takes what is wrong.
    """
    given = without_nulls(model, data)
    try:
        return model.model_validate(given, context=dict(context))
    except ValidationError as error:
        problems += _Section(word, model, tree, key).problems(error.errors(include_url=False))
        return _valid_part(model, given, error)
    # A plugin's own validator may raise what pydantic does not expect.
    except Exception as error:
        log.debug("the model of section %s failed", word, exc_info=True)
        problems.append(Problem(key.place, f"the plugin {word} failed to check its section: {reason(error)}"))
    return None


def _valid_part(model: type[Section], given: JsonValue, error: ValidationError) -> Section | None:
    wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
    if not wrong or not isinstance(given, dict):
        return None
    try:
        right = {name: value for name, value in given.items() if name not in wrong}
        return model.model_validate(right, context={"check_files": False})
    except ValidationError:  # a key is missing
        return None


def names_of(field_name: str, field: FieldInfo) -> list[str]:
    """The keys that set a field: its name and its aliases."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [field_name, *(choice for choice in choices if isinstance(choice, str) and choice != field_name)]


def without_nulls(model: type[BaseModel], data: JsonValue) -> JsonValue:
    """The data without those nulls that mean that the key is not given."""
    if not isinstance(data, dict):
        return {} if data is None else data
    return {name: value for name, value in data.items() if value is not None or _takes_null(model, name)}


def _takes_null(model: type[BaseModel], key: str) -> bool:
    """Whether a null under `key` says something; otherwise it is as if the key were not there."""
    for name, field in model.model_fields.items():
        if key in names_of(name, field):
            return field.is_required() or type(None) in get_args(field.annotation)
    return True  # an unknown key stays, and is a mistake


class _Section:
    """What is wrong with one section."""

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
        name = ".".join((self._word, *path))
        kinds = {error["type"] for error in errors}
        first = errors[0]
        model = _model_at(self._model, path[:-1])
        if "extra_forbidden" in kinds:
            keys = [key for name, field in model.model_fields.items() for key in names_of(name, field)] if model else []
            hint = did_you_mean(path[-1], keys) or (f"the keys are {', '.join(keys)}" if keys else "")
            return Problem(key.place, f"there is no key {name!r}", hint)
        if "missing" in kinds:
            empty = " (its section is empty)" if self._tree is None else ""
            field = model.model_fields.get(path[-1]) if model else None
            return Problem(key.place, f"{name} is missing{empty}", (field.description or "") if field else "")
        if first["loc"] and first["loc"][-1] == "[key]":
            return Problem(
                key.place, f"{path[-1]!r} is no key of {name.rpartition('.')[0]}", _expected(path[-1], errors)
            )
        place = tree.spot.place if tree else key.place
        if isinstance(tree, Scalar) and (tree.value is None or (tree.value == "" and "string_too_short" in kinds)):
            return Problem(place, f"{name} is empty", "" if tree.value == "" else f"it {_wanted(errors)}")
        if "string_type" in kinds and isinstance(tree, Scalar):
            kind = "true or false" if isinstance(tree.value, bool) else "a number"
            hint = f'quote it: "{tree.written}"'
            return Problem(place, f"{name} must be a text, and {tree.written} without quotes is {kind}", hint)
        hint = _expected(tree.value, errors) if isinstance(tree, Scalar) and isinstance(tree.value, str) else ""
        return Problem(place, f"{name} {_wanted(errors)}", hint)

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
