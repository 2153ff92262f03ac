"""How Google's APIs write protocol messages as JSON.

Source: "ProtoJSON format" (protobuf.dev) and the behaviour of googleapis.com: names in camelCase, snake_case
accepted; enums by name, numbers accepted; defaults left out; int64 as a string.
"""

from __future__ import annotations

from enum import Enum

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from tpux_emulator.errors import ApiError, invalid

JsonObject = dict[str, JsonValue]


class ProtoEnum(str, Enum):
    """An enum that knows its numbers, which some clients send and ask for."""

    number: int

    def __new__(cls, name: str, number: int) -> ProtoEnum:
        """A member by its name, with its number beside it."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.number = number
        return member

    @classmethod
    def _missing_(cls, value: object) -> ProtoEnum | None:
        return next((member for member in cls if member.number == value), None)


class Message(BaseModel):
    """A protocol message. Unknown fields are refused, as Google's front end does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _proto_json(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> JsonObject:
        numbers = bool(info.context and info.context.get("enum_numbers"))
        written: JsonObject = handler(self)
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            key = field.alias if info.by_alias and field.alias else name
            # An empty message says something (`spot: {}`); an empty scalar, list or map does not.
            if not value and not isinstance(value, Message):
                written.pop(key, None)
            elif numbers and isinstance(value, ProtoEnum):
                written[key] = value.number
        return written

    def to_json(self, *, enum_numbers: bool = False) -> JsonObject:
        """The message as the API writes it; `enum_numbers` is what `$alt=json;enum-encoding=int` asks."""
        return self.model_dump(mode="json", by_alias=True, context={"enum_numbers": enum_numbers})


def without_nulls(value: JsonValue) -> JsonValue:
    """The value with every null member left out: in ProtoJSON null is the same as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def bad_request(error: ValidationError, where: str) -> ApiError:
    """Google's 400 for the first mistake in a body.

    Args:
        error: what pydantic found.
        where: the request's field that the body stands for (`node`, `queued_resource`), or empty.
    """
    first = error.errors()[0]
    path = ".".join([where, *(str(part) for part in first["loc"])]).strip(".")
    if first["type"] == "extra_forbidden":
        parent, _, name = path.rpartition(".")
        at = f" at '{parent}'" if parent else ""
        message = f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
        return invalid(message, parent or name)
    return invalid(f"Invalid value at '{path}', {first['input']!r}: {first['msg']}", path)
