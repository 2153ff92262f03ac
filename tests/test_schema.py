"""The JSON Schema for editors: up to date, with a description for each key, and accepted by the examples."""

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


def test_the_schema_is_up_to_date(runner, schema):
    printed = json.loads(runner("config", "schema").stdout)
    assert printed == schema, "run `make schema`"


def test_each_key_has_a_description(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    sections = [model for model in schema["$defs"].values() if "properties" in model]
    undescribed = [
        key for model in sections for key, field in model["properties"].items() if not field.get("description")
    ]
    assert sections
    assert undescribed == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_valid_and_name_the_schema(path, schema, runner):
    assert path.read_text().startswith(MODELINE)
    jsonschema.Draft202012Validator(schema).validate(YAML(typ="safe").load(path.read_text()))
    runner.env["WANDB_API_KEY"] = "of an example"
    runner("config", "check", str(path))


@pytest.mark.parametrize(
    "config",
    [
        {"command": {"cmd": "true", "wrkers": 1}},
        {"command": {"cmd": "true"}, "tpu": {"zone": "us-central2-b"}},
        {"command": {"cmd": "true"}, "tpu": {"allocation_mode": "tpu-vm", "zoen": "us-central2-b"}},
    ],
)
def test_an_unknown_key_is_invalid(schema, config):
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(config))
    named = [error.message for error in errors]
    assert any(key in message for message in named for key in ("wrkers", "zone", "zoen")), named


@pytest.mark.parametrize(
    "config",
    [
        {"tpu": {"provision_timeout": -5}},
        {"tpu": {"keep_on_stop": 1e12}},
        {"tpu": {"keep_on_stop": True}},
        {"watch": {"poll_every": 0}},
        {"ssh": {"connect_timeout": 0}},
        {"command": {"cmd": None}},
        {"tpu": {"allocation_mode": None, "zone": "us-central2-b"}},
    ],
)
def test_what_tpux_refuses_is_invalid(schema, runner, config):
    whole = {"command": {"cmd": "true"}, **config}
    assert not jsonschema.Draft202012Validator(schema).is_valid(whole)
    runner("config", "check", runner.config(json.dumps(whole)), code=2)


@pytest.mark.parametrize(
    "config",
    [
        {"tpu": {"allocation_mode": None, "pricing": None, "node_count": None}, "job": {"name": None, "loop": None}},
        {"command": {"cmd": "true", "grace_period": None, "workers": None, "env": None}, "watch": {"poll_every": None}},
        {"setup": {"modules": None}, "ssh": None, "local": {"preempt_after": None}},
        {"command": {"cmd": "true", "grace_period": 0}, "watch": {"poll_every": 0.05, "lost_after": "1m30s"}},
    ],
)
def test_null_means_not_set(schema, runner, config):
    whole = {"command": {"cmd": "true"}, **config}
    assert [*jsonschema.Draft202012Validator(schema).iter_errors(whole)] == []
    runner("config", "check", runner.config(json.dumps(whole)))


def test_an_empty_tpu_section_is_valid(schema):
    jsonschema.Draft202012Validator(schema).validate({"command": {"cmd": "true"}, "tpu": None})


def _keys(schema, node, path=()):
    """Yield the path of each key below a node of the schema, and of each entry of a list or mapping."""
    for choice in [node, *node.get("anyOf", []), *node.get("allOf", [])]:
        if "$ref" in choice:
            yield from _keys(schema, schema["$defs"][choice["$ref"].rpartition("/")[2]], path)
        for name, each in choice.get("properties", {}).items():
            yield (*path, name), each
            yield from _keys(schema, each, (*path, name))
        parts = [choice[name] for name in ("items", "additionalProperties") if isinstance(choice.get(name), dict)]
        for part in [*parts, *choice.get("prefixItems", []), *choice.get("patternProperties", {}).values()]:
            yield (*path, "[]"), part
            yield from _keys(schema, part, (*path, "[]"))


FAKES = """
    from typing import Annotated
    from pydantic import Field
    from tpux import Section, hookimpl

    class FakeSection(Section):
        pair: tuple[int, bool] = (1, True)
        short: Annotated[str, Field(max_length=5)] = ""
        named: dict[Annotated[str, Field(pattern="^a")], int] = {}

    @hookimpl
    def config_section(): return FakeSection
    @hookimpl
    def setup(): yield from ()
"""


@pytest.mark.system
def test_each_key_can_be_a_reference_to_another_one(runner):
    """A value that is one reference has the type of what it refers to."""
    runner.plugin("tpux-fakes", FAKES, entries="fake = tpux_fakes")
    schema = json.loads(runner("config", "schema").stdout)
    keys = [(name, key) for model, node in schema["$defs"].items() for name, key in _keys(schema, node, (model,))]
    assert len(keys) > 200
    refused = [
        ".".join(name)
        for name, key in keys
        if not jsonschema.Draft202012Validator({**key, "$defs": schema["$defs"]}).is_valid("${job.a-b[0].c}")
    ]
    assert refused == []


def test_tpux_reads_the_references_that_the_schema_allows(schema, runner):
    tpu = {"node_count": "${setup.tries}", "keep_on_failure": "${tpu.keep_on_stop}", "keep_on_stop": "${setup.tries}h"}
    whole = {"command": {"cmd": "true", "require_finished": "${job.loop}"}, "tpu": tpu, "job": {"loop": False}}
    whole |= {"setup": {"tries": 1, "modules": "${plugins.disabled}"}, "plugins": {"disabled": []}}
    jsonschema.Draft202012Validator(schema).validate(whole)
    runner("config", "check", runner.config(json.dumps(whole)))
    for wrong in ("${setup.tries} or so", "four"):
        assert not jsonschema.Draft202012Validator(schema).is_valid({**whole, "tpu": {"node_count": wrong}})
