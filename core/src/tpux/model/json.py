"""The codec of events, `State` and all small files: dataclasses as JSON data and back, each field checked.

`None`, `bool`, numbers, strings, `Literal`, unions, tuples, mappings, named tuples and dataclasses are supported.
Unknown fields are ignored, and any string fits a `Literal`: a newer tpux may know more of both. A mapping whose keys
and values are the same in JSON is not looked into: `tpux list` builds the states of all jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, ForwardRef, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
SavedState = Mapping[str, JsonValue]
D = TypeVar("D", bound="DataclassInstance")
_Types = frozenset[type]
_Reader = Callable[[JsonValue], object]
_UNIONS = (Union, UnionType)


def dump(value: object) -> JsonValue:
    """Return a value of a dataclass's field, or a dataclass, as JSON data."""
    if isinstance(value, (tuple, list)):
        return [dump(item) for item in value]
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    return dump_fields(value) if is_dataclass(value) else cast("JsonValue", value)


def dump_fields(value: object) -> dict[str, JsonValue]:
    """Return a dataclass as a JSON object."""
    return {field.name: dump(getattr(value, field.name)) for field in fields(cast("DataclassInstance", value))}


def build(model: type[D], data: Mapping[str, JsonValue]) -> D:
    """Return the dataclass that JSON data describes.

    Raises:
        ValueError: a field is missing or of another type.
    """
    values: dict[str, object] = {}
    complete = not hasattr(model, "__post_init__")
    for name, kept, read, required in _fields(model):
        if name in data:
            value = data[name]
            try:
                values[name] = value if type(value) in kept else read(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        elif required:
            raise ValueError(f"{name} is missing")
        else:
            complete = False
    if not complete:
        return model(**values)
    built = object.__new__(model)  # the `__init__` of a frozen dataclass takes three times as long
    vars(built).update(values)
    return built


@cache
def _fields(model: type[DataclassInstance]) -> list[tuple[str, _Types, _Reader, bool]]:
    """Return each field's name, the types that it has in JSON, too, what reads others, and whether it is required."""
    hints = get_type_hints(model)  # slow
    return [
        (field.name, *_reader(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(model)
    ]


@cache
def _reader(hint: object) -> tuple[_Types, _Reader]:
    """Return the types of JSON values that a type has as they are, and what reads any other value."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        choices = [_reader(choice) for choice in args if not isinstance(choice, ForwardRef)]
        return frozenset().union(*(kept for kept, _ in choices)), _union([read for _, read in choices])
    if origin in {dict, Mapping} and not (args[0] is str and _is_plain(args[1])):
        return frozenset(), _mapping(args[0], *_reader(args[1]))
    if origin is tuple:
        return frozenset(), _tuple(*_reader(args[0]))
    if isinstance(hint, type) and is_dataclass(hint):
        return frozenset(), lambda value: build(hint, value) if isinstance(value, Mapping) else _refuse(value, hint)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return frozenset(), _named_tuple(hint, [_reader(each) for each in get_type_hints(hint).values()])
    same: dict[object, type] = {Literal: str, Mapping: dict}
    kept = {float, int} if hint is float else {same.get(origin, cast("type", origin or hint))}
    return frozenset(kept), lambda value: _refuse(value, hint)


def _is_plain(hint: object) -> bool:
    """Return whether values of a type are the same in JSON. `JsonValue` refers to itself by forward references."""
    if get_origin(hint) in _UNIONS:
        return all(map(_is_plain, get_args(hint)))
    return isinstance(hint, ForwardRef) or bool(_reader(hint)[0])


def _refuse(value: JsonValue, hint: object) -> object:
    raise ValueError(f"{value!r} is not {hint.__name__ if isinstance(hint, type) else hint}")


def _union(choices: list[_Reader]) -> _Reader:
    def read(value: JsonValue) -> object:
        problem = ""
        for choice in choices:
            try:
                return choice(value)
            except ValueError as error:
                problem = problem or str(error)
        raise ValueError(problem)

    return read


def _mapping(key: Callable[[str], object], kept: _Types, read: _Reader) -> _Reader:
    def read_all(value: JsonValue) -> object:
        if not isinstance(value, Mapping):
            return _refuse(value, Mapping)
        return {key(name): item if type(item) in kept else read(item) for name, item in value.items()}

    return read_all


def _tuple(kept: _Types, read: _Reader) -> _Reader:
    def read_all(value: JsonValue) -> object:
        if not isinstance(value, (list, tuple)):
            return _refuse(value, tuple)
        return tuple([item if type(item) in kept else read(item) for item in value])

    return read_all


def _named_tuple(model: type, readers: list[tuple[_Types, _Reader]]) -> _Reader:
    def read_all(value: JsonValue) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            return _refuse(value, model)
        each = zip(value, readers, strict=True)
        return model(*[item if type(item) in kept else read(item) for item, (kept, read) in each])

    return read_all
