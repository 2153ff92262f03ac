"""Protocol messages as JSON, as Google's APIs read and write them.

Source: "ProtoJSON format" (protobuf.dev) and the behaviour of googleapis.com: names in camelCase, with snake_case
accepted; enums by name, with numbers accepted; default values omitted; int64 as a string.
"""

from __future__ import annotations

from enum import StrEnum

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


class ProtoEnum(StrEnum):
    """An enum of names with numbers, which some clients send and request."""

    number: int

    def __new__(cls, name: str, number: int) -> ProtoEnum:
        """Create a member from its name and number."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.number = number
        return member

    @classmethod
    def _missing_(cls, value: object) -> ProtoEnum | None:
        return next((member for member in cls if member.number == value), None)


class Message(BaseModel):
    """A protocol message. Unknown fields are rejected, as by Google's front end."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _proto_json(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> JsonObject:
        numbers = bool(info.context and info.context.get("enum_numbers"))
        written: JsonObject = handler(self)
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            key = field.alias if info.by_alias and field.alias else name
            # The presence of an empty message matters (`spot: {}`); an empty scalar, list or map is a default.
            if not value and not isinstance(value, Message):
                written.pop(key, None)
            elif numbers and isinstance(value, ProtoEnum):
                written[key] = value.number
        return written

    def to_json(self, *, enum_numbers: bool = False) -> JsonObject:
        """Return the message as JSON; with `enum_numbers`, enums as numbers (`$alt=json;enum-encoding=int`)."""
        return self.model_dump(mode="json", by_alias=True, context={"enum_numbers": enum_numbers})


def without_nulls(value: JsonValue) -> JsonValue:
    """Return a JSON value without null members: in ProtoJSON, null means absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def bad_request(error: ValidationError, where: str) -> ApiError:
    """Return Google's 400 for the first error in a body.

    Args:
        error: the errors.
        where: the request's field that the body stands for, such as `node`; may be empty.
    """
    first = error.errors()[0]
    path = ".".join([where, *(str(part) for part in first["loc"])]).strip(".")
    if first["type"] == "extra_forbidden":
        parent, _, name = path.rpartition(".")
        at = f" at '{parent}'" if parent else ""
        message = f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
        return invalid(message, parent or name)
    return invalid(f"Invalid value at '{path}', {first['input']!r}: {first['msg']}", path)
