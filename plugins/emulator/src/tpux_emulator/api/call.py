"""One call of a method: its path, query and body, checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from tpux_emulator.api.proto import JsonObject, Message, bad_request, without_nulls
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.errors import invalid

# What every method of a Google API takes ("Standard query parameters" of the discovery document).
STANDARD = {"$.xgafv", "access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser",
            "upload_protocol", "uploadType"}  # fmt: skip
Body = TypeVar("Body", bound=Message)


@dataclass
class Call:
    """A request on its way to the cloud.

    Args:
        cloud: whom it asks.
        path: the parameters in the path: project, location, and the resource's id.
        query: the query's parameters, in camelCase, without a leading `$`.
        payload: the raw body.
    """

    cloud: Cloud
    path: Mapping[str, str]
    query: Mapping[str, str]
    payload: bytes

    @property
    def parent(self) -> str:
        """`projects/P/locations/Z`."""
        return f"projects/{self.path['project']}/locations/{self.path['location']}"

    @property
    def zone(self) -> str:
        """The location in the path."""
        return self.path["location"]

    @property
    def enum_numbers(self) -> bool:
        """Whether the client wants enums as numbers (`$alt=json;enum-encoding=int`)."""
        return "enum-encoding=int" in self.query.get("alt", "")

    def name(self, collection: str) -> str:
        """The full name of the resource in the path."""
        return f"{self.parent}/{collection}/{self.path['id']}"

    def body(self, model: type[Body], where: str = "") -> Body:
        """The body as a message.

        Raises:
            ApiError: 400; it is no JSON, or a field is unknown or of the wrong type.
        """
        try:
            content: JsonValue = json.loads(self.payload or b"{}")
        except ValueError as error:
            raise invalid(f"Invalid JSON payload received. {error}") from error
        try:
            return model.model_validate(without_nulls(content))
        except ValidationError as error:
            raise bad_request(error, where) from error

    def flag(self, name: str) -> bool:
        """A boolean of the query.

        Raises:
            ApiError: 400; it is neither true nor false.
        """
        text = self.query.get(name, "false")
        if text.lower() not in ("true", "false", "1", "0"):
            raise invalid(f"Invalid value at '{name}' (TYPE_BOOL), \"{text}\"", name)
        return text.lower() in ("true", "1")


@dataclass(frozen=True)
class Method:
    """One method of the API.

    Args:
        id: as `nodes.create`; what faults and the log call it.
        verb: the HTTP method.
        path: Starlette's pattern.
        run: answers a call with a message or the JSON of one.
        query: the parameters it takes beside the standard ones.
    """

    id: str
    verb: str
    path: str
    run: Callable[[Call], Message | JsonObject]
    query: frozenset[str] = frozenset()

    def check_query(self, given: Mapping[str, str]) -> dict[str, str]:
        """The query with its names in camelCase.

        Raises:
            ApiError: 400; a parameter that the method does not take.
        """
        checked = {}
        for key, value in given.items():
            plain = key.removeprefix("$") if key != "$.xgafv" else key
            name = plain if plain in STANDARD else to_camel(plain) if "_" in plain else plain
            if name not in self.query and name not in STANDARD:
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter.'
                    f" Field '{key}' could not be found in request message.",
                    key,
                )
            checked[name] = value
        return checked
