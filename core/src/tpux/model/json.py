"""JSON data, and dataclasses as JSON data and back, each field checked against its type.

`None`, `bool`, numbers, strings, `Literal`, unions, tuples of one type, mappings and dataclasses are supported. Unknown
fields are ignored, and any string fits a `Literal`: a newer tpux may know more of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
SavedState = Mapping[str, JsonValue]
D = TypeVar("D", bound="DataclassInstance")


def dump(value: object) -> JsonValue:
    """Return a value of a dataclass's field, or a dataclass, as JSON data."""
    if isinstance(value, (tuple, list)):
        return [dump(item) for item in value]
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in fields(value)}
    return cast("JsonValue", value)


def build(model: type[D], data: Mapping[str, JsonValue]) -> D:
    """Return the dataclass that JSON data describes.

    Raises:
        ValueError: a field is missing or of another type.
    """
    given: dict[str, object] = {}
    for field in fields(model):
        if field.name in data:
            try:
                given[field.name] = _convert(data[field.name], _types(model)[field.name])
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from error
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name} is missing")
    return model(**given)


@cache
def _types(model: type[DataclassInstance]) -> dict[str, object]:
    return get_type_hints(model)  # slow


def _convert(value: JsonValue, hint: object) -> object:
    """Return a JSON value as a field of this type holds it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        problem = ""
        for choice in args:
            try:
                return _convert(value, choice)
            except ValueError as error:
                problem = problem or str(error)
        raise ValueError(problem)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(item, args[0]) for item in value)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value)
    if origin is Literal:
        fits = isinstance(value, str)
    elif origin is Mapping:
        fits = isinstance(value, Mapping)
    else:
        fits = type(value) is hint or (hint is float and type(value) is int)
    if not fits:
        raise ValueError(f"{value!r} is not {hint.__name__ if isinstance(hint, type) else hint}")
    return value
