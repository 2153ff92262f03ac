"""A call of an API method, with checked path, query and body; and the definition of a method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.errors import invalid
from tpux_emulator.protojson import JsonObject, Message, bad_request, without_nulls

LOCATION = "/v2/projects/{project}/locations/{location}"
# In place of a location: all locations of the project.
ANY_LOCATION = "-"
# Resource ids by AIP-122, as the TPU API checks them: RFC 1035 labels.
_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# The query parameters of every method of a Google API ("Standard query parameters" of the discovery document).
_STANDARD = {"$.xgafv", "access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser",
             "upload_protocol", "uploadType"}  # fmt: skip
Body = TypeVar("Body", bound=Message)


@dataclass
class Call:
    """A request to a method.

    Args:
        cloud: the cloud.
        path: the path's parameters: project, location, and the resource's id.
        query: the query's parameters, in camelCase and without a leading `$`.
        payload: the raw body.
        alpha: the method is one of v2alpha1.
    """

    cloud: Cloud
    path: Mapping[str, str]
    query: Mapping[str, str]
    payload: bytes
    alpha: bool = False

    @property
    def parent(self) -> str:
        """`projects/P/locations/Z`."""
        return f"projects/{self.path['project']}/locations/{self.path['location']}"

    @property
    def zone(self) -> str:
        """The location in the path: a zone, or `-` for all."""
        return self.path["location"]

    @property
    def enum_numbers(self) -> bool:
        """Whether the client expects enums as numbers (`$alt=json;enum-encoding=int`)."""
        return "enum-encoding=int" in self.query.get("alt", "")

    def name(self, collection: str) -> str:
        """Return the full name of the resource in the path."""
        return f"{self.parent}/{collection}/{self.path['id']}"

    def body(self, model: type[Body], where: str = "") -> Body:
        """Parse the body as a message.

        Args:
            model: the message's type.
            where: the request's field that the body stands for, such as `node`; prefixes field names in errors.

        Raises:
            ApiError: 400 if it is not JSON, or a field is unknown or of the wrong type.
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
        """Return a boolean parameter of the query; false if it is absent.

        Raises:
            ApiError: 400 if it is neither true nor false.
        """
        text = self.query.get(name, "false")
        if text.lower() not in ("true", "false", "1", "0"):
            raise invalid(f"Invalid value at '{name}' (TYPE_BOOL), \"{text}\"", name)
        return text.lower() in ("true", "1")


@dataclass(frozen=True)
class Method:
    """The definition of an API method.

    Args:
        id: such as `nodes.create`, as fault rules and the log name it.
        verb: the HTTP method.
        path: the path, as a Starlette pattern.
        run: handles a call; returns a message, or JSON.
        query: the query parameters that it takes in addition to the standard ones.
        alpha: it is one of v2alpha1.
    """

    id: str
    verb: str
    path: str
    run: Callable[[Call], Message | JsonObject]
    query: frozenset[str] = frozenset()
    alpha: bool = False

    def check_query(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the query with its names in camelCase.

        Raises:
            ApiError: 400 for a parameter that the method does not take.
        """
        checked = {}
        for key, value in given.items():
            plain = key.removeprefix("$") if key != "$.xgafv" else key
            name = plain if plain in _STANDARD else to_camel(plain) if "_" in plain else plain
            if name not in self.query and name not in _STANDARD:
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter.'
                    f" Field '{key}' could not be found in request message.",
                    key,
                )
            checked[name] = value
        return checked


def check_id(text: str, field: str) -> str:
    """Return a resource id that a client chose.

    Raises:
        ApiError: 400 if it is empty or malformed.
    """
    if not _ID.fullmatch(text):
        raise invalid(
            f"Invalid resource ID '{text}' in the \"{field}\" field. It must be 1 to 63 characters: lower-case"
            " letters, digits and hyphens, starting with a letter and not ending with a hyphen.",
            field,
        )
    return text
