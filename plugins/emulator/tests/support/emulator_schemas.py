"""Checks requests and answers against Google's discovery document of the TPU API."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

from tpux_emulator.api.exchanges import Exchange


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """Return the discovery document that google-api-python-client ships."""
    package = resources.files("googleapiclient") / "discovery_cache" / "documents" / "tpu.v2.json"
    loaded: dict[str, Any] = json.loads(package.read_text())
    return loaded


def _convert(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a discovery schema to JSON Schema, with unknown fields forbidden."""
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{schema['$ref']}"}
    if schema.get("type") == "any":
        return {}
    out: dict[str, Any] = {"type": schema["type"]}
    if "enum" in schema:
        out["enum"] = schema["enum"]
    if schema.get("format") == "int64":
        out["pattern"] = r"^-?\d+$"
    if schema.get("format") == "google-datetime":
        out["pattern"] = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"
    if schema["type"] == "array":
        out["items"] = _convert(schema["items"])
    if schema["type"] == "object":
        out["properties"] = {name: _convert(each) for name, each in schema.get("properties", {}).items()}
        more = schema.get("additionalProperties")
        out["additionalProperties"] = _convert(more) if more else False
    return out


@cache
def validator(name: str) -> Draft202012Validator:
    """Return a validator for a message type."""
    definitions = {each: _convert(schema) for each, schema in document()["schemas"].items()}
    definitions["OperationMetadata"]["properties"]["@type"] = {"type": "string"}
    return Draft202012Validator({"$defs": definitions, "$ref": f"#/$defs/{name}"})


@lru_cache(maxsize=1)
def methods() -> dict[str, dict[str, Any]]:
    """Return the methods of the document by id, such as `nodes.create`."""
    found: dict[str, dict[str, Any]] = {}
    locations = document()["resources"]["projects"]["resources"]["locations"]
    for name, method in locations["methods"].items():
        found[f"locations.{name}"] = method
    for collection, resource in locations["resources"].items():
        for name, method in resource["methods"].items():
            found[f"{collection}.{name}"] = method
    return found


def check_exchanges(exchanges: list[Exchange]) -> None:
    """Fail on the first message that the discovery document does not allow.

    Rejected requests may be invalid; all others, and every answer, must be valid.
    """
    for each in exchanges:
        method = methods().get(each.method)
        if method is None:
            continue
        if each.status == 200 and isinstance(each.body, dict) and "request" in method:
            _check(method["request"]["$ref"], _plain(each.body), each)
        if each.status == 200 and "fields" not in each.query:
            assert isinstance(each.answer, dict), each
            if "enum-encoding=int" in str(each.query):
                continue  # the document has enums by name only; google-cloud-tpu has parsed these
            _check(method["response"]["$ref"], each.answer, each)
            if method["response"]["$ref"] == "Operation":
                _check_operation(each.answer, each)
        if each.status not in (0, 200):
            assert isinstance(each.answer, dict), each
            assert set(each.answer) == {"error"}, each
            assert {"code", "message", "status"} <= set(each.answer["error"]), each  # type: ignore[arg-type]


def _check_operation(operation: dict[str, Any], each: Exchange) -> None:
    _check("OperationMetadata", operation["metadata"], each)
    assert not ("error" in operation and "response" in operation), each
    response = dict(operation.get("response") or {})
    if response:
        kind = response.pop("@type").rpartition(".")[2]
        _check(kind, response, each)


def _check(name: str, message: Any, each: Exchange) -> None:
    errors = sorted(validator(name).iter_errors(message), key=lambda error: list(error.path))
    assert not errors, f"{each.verb} {each.path}: {errors[0].message} at {list(errors[0].path)} of {name}"


def _plain(body: Any) -> Any:
    """Normalize what else ProtoJSON allows: snake_case, nulls, numbers for enums."""
    if isinstance(body, dict):
        there = {key: value for key, value in body.items() if value is not None}
        return {_camel(key): _plain(value) for key, value in there.items() if (key, type(value)) != ("type", int)}
    if isinstance(body, list):
        return [_plain(item) for item in body]
    return body


def _camel(text: str) -> str:
    first, *rest = text.split("_")
    return first + "".join(part.capitalize() for part in rest)
