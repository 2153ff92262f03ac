"""The schema that editors are given: true to what is installed, a sentence for each key, and the examples fit it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "docs/tpux.schema.json"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MODELINE = "# yaml-language-server: $schema=../docs/tpux.schema.json\n"


@pytest.fixture(scope="module")
def schema():
    return json.loads(SCHEMA.read_text())


def test_the_schema_is_what_is_installed(tpux, schema):
    printed = json.loads(tpux("config", "schema").stdout)
    assert printed == schema, "`make schema` writes it anew"


def test_each_key_has_its_sentence(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    sections = [model for model in schema["$defs"].values() if "properties" in model]
    silent = [key for model in sections for key, field in model["properties"].items() if not field.get("description")]
    assert sections
    assert silent == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_fit_it_and_say_so(path, schema, tpux):
    assert path.read_text().startswith(MODELINE)
    jsonschema.Draft202012Validator(schema).validate(YAML(typ="safe").load(path.read_text()))
    tpux("config", "check", str(path))


def test_a_mistake_does_not_fit_it(schema):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"command": {"cmd": "true", "wrkers": 1}})
