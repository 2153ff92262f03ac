"""The messages for errors in a section (unknown key, missing key, wrong type): pydantic's errors as problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from tpux.config.document import Argument, MappingNode, Node, ScalarNode, SequenceNode, Span, node_at
from tpux.config.models import allocator_models, keys_by_section
from tpux.errors import Problem
from tpux.model.sections import TpuSection, keys_of, names_of
from tpux.plugin.catalog import did_you_mean
from tpux.plugin.descriptions import descriptions
from tpux.plugin.synonyms import key_hint, meant

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from tpux.plugin.manager import Plugins


@dataclass(frozen=True)
class SectionErrors:
    """Makes the messages for the errors of one section.

    Attributes:
        section: the section's name; "" for a whole file.
        model: its model.
        node: its content, None if the config has none.
        key: the span of the section's name, or of the value that selects its plugin.
        plugins: the plugins, whose allocators have other keys of `tpu`; None for a file without them.
    """

    section: str
    model: type[BaseModel]
    node: Node | None
    key: Span
    plugins: Plugins | None = None

    def problems(self, errors: Sequence[ErrorDetails]) -> list[Problem]:
        """Return one problem per value: each branch of a union has an error, of which the deepest one counts."""
        by_path: dict[tuple[str, ...], list[ErrorDetails]] = {}
        for error in errors:
            by_path.setdefault(self._path(error), []).append(error)
        paths = [path for path in by_path if not any(other[: len(path)] == path and other != path for other in by_path)]
        return [self._problem(path, by_path[path]) for path in paths]

    def _path(self, error: ErrorDetails) -> tuple[str, ...]:
        """Return the keys and indices of `loc` that the config has, without the labels of a union's branches."""
        path: list[str] = []
        node = self.node
        for step in error["loc"]:
            if isinstance(node, MappingNode) and step in node.entries:
                node = node.entries[str(step)].value
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            else:
                continue
            path.append(str(step))
        if error["type"] == "missing":
            path.append(str(error["loc"][-1]))
        return tuple(path)

    def _problem(self, path: tuple[str, ...], errors: list[ErrorDetails]) -> Problem:
        key, node = self._find(path)
        kind, place = errors[0]["type"], errors[0]["loc"]
        if kind in {"extra_forbidden", "missing"} or (kind == "literal_error" and place[-1:] == ("[key]",)):
            message, hint = self._key_message(path, errors)
            return Problem(key.location, message, hint)
        message, hint = _value_message(node, errors)
        name, value = self._name(path), node.value if isinstance(node, ScalarNode) else ""
        if (other := meant("values", f"{name}.{value}")) is not None:
            hint = f"did you mean {other!r}?"
        return Problem((node.span if node else key).location, f"{name or 'the file'}{message}", hint)

    def _key_message(self, path: tuple[str, ...], errors: list[ErrorDetails]) -> tuple[str, str]:
        kind = errors[0]["type"]
        model = _model_at(self.model, path[:-1])
        if kind == "missing":
            empty = " (the section is empty)" if self.node is None else ""
            return f"missing key {self._name(path)!r}{empty}", descriptions(model).get(path[-1], "") if model else ""
        if kind == "extra_forbidden":
            keys = keys_of(model) if model else []
            hint = self._elsewhere(path, keys) or (f"the keys are {', '.join(keys)}" if keys else "")
            if model and issubclass(model, TpuSection):
                hint = self._allocator_hint(path, keys)
            return f"unknown key {self._name(path)!r}", hint
        return f"unknown key {self._name(path)!r}", _suggest(path[-1], errors)

    def _elsewhere(self, path: tuple[str, ...], keys: Sequence[str]) -> str:
        """Return what may be meant by an unknown key: one of the section's keys, or one of another section."""
        sections = keys_by_section(self.plugins) if self.plugins else {}
        known = key_hint((self.section, *path), {}) if self.plugins else ""
        return known or did_you_mean(path[-1], keys) or key_hint((self.section, *path), sections)

    def _allocator_hint(self, path: tuple[str, ...], keys: Sequence[str]) -> str:
        """Return the hint for a key of `tpu` that the selected allocator does not have."""
        key = path[-1]
        given = node_at(self.node, ("allocation_mode",))
        allocator = f"{TpuSection.model_fields['allocation_mode'].default}, the default"
        if given is not None:
            value = given.value if isinstance(given, ScalarNode) else None
            allocator = value if isinstance(value, str) else "another allocator"
        models = allocator_models(self.plugins) if self.plugins else {}
        if others := [name for name, model in models.items() if key in keys_of(model)]:
            return f"{key} is a key of {' and '.join(others)}; this config uses {allocator}"
        return self._elsewhere(path, keys) or f"the keys with allocation_mode {allocator}: {', '.join(keys)}"

    def _name(self, path: tuple[str, ...]) -> str:
        return ".".join(filter(None, (self.section, *path)))

    def _find(self, path: tuple[str, ...]) -> tuple[Span, Node | None]:
        """Return the key's span and the value at `path`, or of its closest ancestor present in the config."""
        key, node = self.key, self.node
        for step in path:
            if isinstance(node, MappingNode) and step in node.entries:
                key, node = node.entries[step].key, node.entries[step].value
            elif isinstance(node, SequenceNode) and step.isdecimal():
                key, node = node.items[int(step)].span, node.items[int(step)]
            else:
                return key, None
        return key, node


def _value_message(node: Node | None, errors: list[ErrorDetails]) -> tuple[str, str]:
    """Return the message, to be appended to the key, and the hint."""
    kinds = {error["type"] for error in errors}
    if not isinstance(node, ScalarNode):
        is_argument = node is not None and isinstance(node.span.source, Argument)
        hint = "the value is parsed as YAML: put quotes inside the argument"
        return _expected(errors), hint if is_argument and "string_type" in kinds else ""
    if node.value is None:
        return " is empty", f"it{_expected(errors)}"
    if node.value == "" and "string_too_short" in kinds:
        return " is empty", ""
    if "string_type" in kinds:
        kind = "true or false" if isinstance(node.value, bool) else "a number"
        return f" must be a string; {node.raw} without quotes is {kind}", f'quote it: "{node.raw}"'
    return _expected(errors), _suggest(node.value, errors) if isinstance(node.value, str) else ""


def _model_at(model: type[BaseModel] | None, path: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of the value at `path`, None if it has none."""
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


_EXPECTED = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def _expected(errors: Sequence[ErrorDetails]) -> str:
    """Return what all errors of one value say, to be appended to its key."""
    expected = []
    for error in errors:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if error["type"] in _EXPECTED or message.startswith("Input should be "):
            expected.append(_EXPECTED.get(error["type"], message.removeprefix("Input should be ")))
        else:
            return f": {message}"
    return " must be " + " or ".join(dict.fromkeys(expected))


def _suggest(value: str, errors: Sequence[ErrorDetails]) -> str:
    choices = [
        choice for error in errors for choice in re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected")))
    ]
    return did_you_mean(value, choices)
