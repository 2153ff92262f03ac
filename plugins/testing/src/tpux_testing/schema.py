"""The JSON Schema of a config: core's sections and those of all installed plugins."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from tpux.config.models import DEFAULT_ALLOCATOR, OtherTpuSection, allocator_models, model_of
from tpux.errors import TpuxError
from tpux.model.json import JsonValue
from tpux.model.sections import CORE_SECTIONS, Section, TpuSection, names_of
from tpux.plugin.catalog import DIST_OF
from tpux.plugin.descriptions import descriptions
from tpux.plugin.manager import Plugins

log = logging.getLogger(__name__)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NULL: JsonSchemaValue = {"type": "null"}
_REFERENCE: JsonSchemaValue = {"type": "string", "pattern": r"^\$\{[^{}]+\}$"}
_TEXT_WITH_REFERENCE: JsonSchemaValue = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""pydantic leaves the limits of a number under its own names if a validator of ours comes before it."""


def schema(plugins: Plugins) -> dict[str, JsonValue]:
    """Return the schema of the configs that the installed plugins can read; other known sections may have any content.

    It is pydantic's schema of the models (docs.pydantic.dev, "JSON Schema"), plus the aliases of keys such as
    `command.run`, null for every key of a section that may be left out, and references such as `${local.workers}`.
    """
    models: dict[str, type[Section]] = {}
    others: dict[str, JsonSchemaValue] = {
        name: {"description": f"Not validated: pip install {dist}."} for name, dist in DIST_OF.items()
    }
    allocators = allocator_models(plugins)
    for name in [*CORE_SECTIONS, *plugins.names()]:
        model = OtherTpuSection if name == "tpu" else _model_or_note(name, plugins)
        if isinstance(model, dict):
            others[name] = model
        else:
            models[name] = model
    refs, definitions = models_json_schema(
        [(model, "validation") for model in dict.fromkeys([*models.values(), *allocators.values()])],
        schema_generator=_SchemaWithAliases,
    )
    for (section, _), ref in refs.items():
        _allow_null(definitions["$defs"][ref["$ref"].rpartition("/")[2]], cast("type[Section]", section))
    for definition in definitions["$defs"].values():
        _allow_references(definition)
    sections = {name: _section(model, refs[model, "validation"]) for name, model in models.items()}
    sections["command"] = {"anyOf": [refs[models["command"], "validation"], {"type": "string", "minLength": 1}]}
    by_allocator = {name: refs[model, "validation"] for name, model in allocators.items()}
    sections["tpu"] = _tpu(by_allocator, refs[OtherTpuSection, "validation"])
    properties = {**sections, **{name: others[name] for name in others if name not in sections}}
    whole = {
        "$schema": DIALECT,
        "title": "tpux config",
        "type": "object",
        "properties": properties,
        "required": ["command"],
        "additionalProperties": False,
        "$defs": definitions["$defs"],
    }
    return cast("dict[str, JsonValue]", whole)


def _model_or_note(name: str, plugins: Plugins) -> type[Section] | JsonSchemaValue:
    try:
        model = model_of(name, plugins)
    except TpuxError as error:
        return {"description": f"Not validated: {error.message}."}
    return model or {"description": f"{name} has no settings.", "type": ["object", "null"], "maxProperties": 0}


def _allow_null(section: JsonSchemaValue, model: type[Section]) -> None:
    """Allow null for the keys of a section that need not be set (`validate.drop_unset`)."""
    properties = section.get("properties", {})
    optional = {name: field for name, field in model.model_fields.items() if not field.is_required()}
    for name in [key for field_name, field in optional.items() for key in names_of(field_name, field)]:
        if name in properties:
            properties[name] = _or(properties[name], _NULL)


def _allow_references(schema: JsonSchemaValue) -> None:
    """Allow `${...}` for each key: a value that is one reference has the type of what it refers to."""
    for choice in [schema, *schema.get("anyOf", [])]:
        for name, key in choice.get("properties", {}).items():
            choice["properties"][name] = _or_reference(key)
        for name in ("items", "additionalProperties"):
            if isinstance(choice.get(name), dict):
                choice[name] = _or_reference(choice[name])
        for pattern, value in choice.get("patternProperties", {}).items():
            choice["patternProperties"][pattern] = _or_reference(value)
        if "prefixItems" in choice:
            choice["prefixItems"] = [_or_reference(item) for item in choice["prefixItems"]]


def _or_reference(key: JsonSchemaValue) -> JsonSchemaValue:
    _allow_references(key)
    is_text = any("string" in choice.get("type", ()) for choice in key.get("anyOf", [key]))
    return _or(key, _TEXT_WITH_REFERENCE if is_text else _REFERENCE)


def _or(key: JsonSchemaValue, other: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a key that may also have another type."""
    choices = key.get("anyOf", [key])
    types = [key["type"]] if isinstance(key.get("type"), str) else key.get("type", [])
    if other in choices or any(other["type"] in each.get("type", ()) and _is_any(each) for each in choices):
        return key
    if types and other["type"] not in types and not key.keys() & {"enum", "const"}:
        return {**key, **other, "type": [*types, other["type"]]}
    about: JsonSchemaValue = {word: key[word] for word in ("default", "description", "title") if word in key}
    content = {word: value for word, value in key.items() if word not in about}
    return {"anyOf": [*(content["anyOf"] if content.keys() == {"anyOf"} else [content]), other], **about}


def _is_any(key: JsonSchemaValue) -> bool:
    return not key.keys() & {"enum", "const", "pattern", "format", "maxLength"}


def _named_limits(schema: object) -> None:
    """Give the limits of all numbers in a schema the names of JSON Schema."""
    if isinstance(schema, dict):
        for name in _LIMITS.keys() & schema.keys() if "type" in schema else ():
            if isinstance(schema[name], (int, float)):
                schema[_LIMITS[name]] = schema.pop(name)
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _named_limits(value)


def _section(model: type[Section], ref: JsonSchemaValue) -> JsonSchemaValue:
    described = {"description": " ".join(model.__doc__.split())} if model.__doc__ else {}
    return {"anyOf": [ref, {"type": "null"}], **described}


def _tpu(allocators: Mapping[str, JsonSchemaValue], other: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of the section `tpu`: its keys depend on `allocation_mode`.

    Args:
        allocators: the schema for each installed allocator.
        other: the schema for any other; it allows unknown keys.
    """

    def mode(schema: JsonSchemaValue, *, given: bool) -> JsonSchemaValue:
        required = {"required": ["allocation_mode"]} if given else {}
        return {"type": "object", "properties": {"allocation_mode": schema}, **required}

    described = _section(TpuSection, other)
    if not allocators:
        return described

    def named(names: Iterable[str]) -> JsonSchemaValue:
        """Return the condition that one of these allocators is chosen; the default one also is by null."""
        values = [*names]
        default = DEFAULT_ALLOCATOR in values
        return mode({"enum": [*values, None] if default else values}, given=not default)

    branches = [{"if": named([name]), "then": ref} for name, ref in allocators.items()]
    installed = named(allocators)
    choices = {"anyOf": [{"enum": [*allocators]}, {"type": ["string", "null"]}]}  # editors offer the first
    other_mode = {"type": "object", "not": installed}
    # Not in an `anyOf` with null: editors would mark the whole section instead of the wrong key.
    return {
        **mode(choices, given=False),
        "type": ["object", "null"],
        "allOf": [*branches, {"if": other_mode, "then": other}],
        "description": described["description"],
    }


class _SchemaWithAliases(GenerateJsonSchema):
    """Includes the keys' descriptions, and all aliases (`AliasChoices`); pydantic's own schema has only the first."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of one model."""
        made = super().model_schema(schema)
        _named_limits(made)
        model: type[BaseModel] = schema["cls"]
        described = descriptions(model)
        for field_name, names in [(name, names_of(name, field)) for name, field in model.model_fields.items()]:
            known = next((name for name in names if name in made.get("properties", {})), None)
            if known is None:
                continue
            if field_name in described:
                made["properties"][known]["description"] = described[field_name]
            if len(names) == 1:
                continue
            made["properties"].update(dict.fromkeys(names, made["properties"][known]))
            if known in made.get("required", []):
                made["required"] = [name for name in made["required"] if name != known]
                made.setdefault("allOf", []).append({"anyOf": [{"required": [name]} for name in names]})
        return made
