"""The `tpu` section: core's keys, and those of the chosen allocator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest

from tpux import TpuSection, config, hookimpl
from tpux.config.resolved import Loaded
from tpux.errors import ConfigError, TpuxError, UsageError
from tpux.plugin.manager import Plugins
from tpux_testing.schema import schema

Load = Callable[..., Loaded]
Problems = Callable[..., list[str]]
COMMAND = "\ncommand: {cmd: x}"
CLOUD = f"""\
tpu:
  allocation_mode: tpu-vm
  accelerator: v4-16
  zone: a
  tags: [t]
  name: 'n-${{tpu.zone}}'
{COMMAND}"""


class RackTpuSection(TpuSection):
    """The machines of a rack."""

    transport: ClassVar[str] = "ssh"
    rack: str
    """The rack."""

    def count_workers(self) -> int | None:
        if self.rack == "unknown":
            raise UsageError("unknown rack", hint="such as r1")
        return 2 * self.node_count if self.rack == "r1" else None


class Rack:
    model: Any = RackTpuSection

    @hookimpl
    def tpu_section(self) -> object:
        return self.model

    @hookimpl
    def provision(self) -> None:
        return None


@pytest.fixture
def rack(plugins: Plugins) -> Rack:
    plugin = Rack()
    plugins.add("rack", plugin)
    return plugin


def test_the_allocators_model_validates_the_section(read: Load, rack: Rack) -> None:
    loaded = read(f"tpu: {{allocation_mode: rack, rack: r1, node_count: 3}}{COMMAND}")
    section = loaded.sections["tpu"]
    assert isinstance(section, RackTpuSection)
    assert (section.rack, section.transport, loaded.workers) == ("r1", "ssh", 6)
    assert read(f"tpu: {{allocation_mode: rack, rack: r2}}{COMMAND}").workers is None


@pytest.mark.parametrize(
    ("tpu", "place", "message"),
    [
        ("allocation_mode: bare, colour: nope", "1:30", "'tpu.colour' | the keys with allocation_mode bare: "),
        ("rack: r1", "1:7", "'tpu.rack' | rack is a key of rack; this config uses local, the default"),
        ("allocation_mode: rack, rack: r1, zone: a", "1:40", "'tpu.zone'"),
        ("allocation_mode: rack, rack: r1, rck: a", "1:40", "did you mean 'rack'?"),
        ("allocation_mode: rack", "1:1", "missing key 'tpu.rack'"),
        ("allocation_mode: rack, rack: unknown, accelerator: v4-8", "1:58", "unknown rack | such as r1"),
        ("allocation_mode: '${job.name}', rack: r1, zone: a", "1:49", "'tpu.zone'"),
    ],
)
def test_a_key_of_another_allocator_is_an_error(
    problems: Problems, rack: Rack, tpu: str, place: str, message: str
) -> None:
    (only,) = problems(f"tpu: {{{tpu}}}\njob: {{name: rack}}{COMMAND}")
    assert only.startswith(f"c.yaml:{place}: ")
    assert message in only


def test_workers_are_not_counted_from_an_invalid_section(problems: Problems) -> None:
    (only,) = problems("tpu: {accelerator: v4-12}\ncommand: {cmd: x, workers: 3}")
    assert "v4 has no size 12" in only


def test_an_allocator_without_tpu_section_has_cores_keys(read: Load) -> None:
    loaded = read(f"tpu: {{allocation_mode: bare, accelerator: anything}}{COMMAND}")
    assert type(loaded.sections["tpu"]) is TpuSection
    assert loaded.workers is None


def test_cores_keys_are_validated_if_the_allocator_is_not_installed(problems: Problems) -> None:
    found = problems(f"tpu: {{allocation_mode: hosts, rack: r1, pricing: spto}}{COMMAND}")
    assert "pip install tpux-plugin-ssh" in found[0]
    assert "tpu.pricing" in found[1]
    assert len(found) == 2


@pytest.mark.parametrize("model", [dict, "RackTpuSection"])
def test_an_invalid_model_is_reported_at_the_allocator(problems: Problems, rack: Rack, model: object) -> None:
    rack.model = model
    (only,) = problems(f"tpu: {{allocation_mode: rack}}{COMMAND}")
    assert only.startswith("c.yaml:1:24: plugin rack gave a wrong answer from tpu_section")


def test_a_failure_to_count_the_workers_is_reported(problems: Problems, rack: Rack) -> None:
    class Bad(TpuSection):
        def count_workers(self) -> int | None:
            raise KeyError("oops")

    rack.model = Bad
    (only,) = problems(f"tpu: {{allocation_mode: rack}}{COMMAND}")
    assert only.startswith("c.yaml:1:24: plugin rack failed in count_workers() of its section: KeyError: 'oops'")


def test_a_stored_config_is_read_with_the_allocators_model(read: Load, rack: Rack, plugins: Plugins) -> None:
    loaded = read(f"tpu: {{allocation_mode: rack, rack: r1}}{COMMAND}")
    stored = json.loads(json.dumps(loaded.resolved(id="000001", user="u")))
    assert config.from_resolved(stored, plugins=plugins, secrets={}).sections["tpu"] == loaded.sections["tpu"]


def test_overriding_the_allocator_drops_unused_keys_of_the_file(read: Load, plugins: Plugins) -> None:
    loaded = read(CLOUD, "tpu.allocation_mode=bare")
    tpu = loaded.sections["tpu"]
    assert isinstance(tpu, TpuSection)
    assert (type(tpu), tpu.accelerator, tpu.name) == (TpuSection, "v4-16", "n-a")
    (warning,) = loaded.warnings
    assert warning.where == "c.yaml:4:3"
    assert warning.message == "keys not used by allocator 'bare' are ignored: tpu.zone, tpu.tags"
    resolved = loaded.resolved(id="000001", user="u")["config"]
    assert resolved["tpu"] == {"allocation_mode": "bare", "accelerator": "v4-16", "name": "n-a"}  # type: ignore[index,call-overload]


def test_dropped_keys_require_no_secret_and_no_file(read: Load) -> None:
    text = f"tpu: {{allocation_mode: tpu-vm, project: '${{env:NOT_SET}}', startup_script: nowhere.sh}}{COMMAND}"
    assert len(read(text, "tpu.allocation_mode=bare").warnings) == 1


def test_only_keys_known_to_the_files_allocator_are_dropped(problems: Problems) -> None:
    (only,) = problems(CLOUD.replace("tags:", "tgas:"), "tpu.allocation_mode=bare")
    assert only.startswith("c.yaml:5:3: ")
    (only,) = problems(CLOUD, "tpu.allocation_mode=bare", "tpu.zone=b")
    assert only.startswith("argument 'tpu.zone=b': ")


def test_the_files_allocator_may_be_the_default_or_a_reference(read: Load) -> None:
    (warning,) = read(f"tpu: {{zone: a}}{COMMAND}", "tpu.allocation_mode=bare").warnings
    assert "tpu.zone" in warning.message
    text = f"tpu: {{allocation_mode: '${{job.name}}', zone: a}}\njob: {{name: tpu-vm}}{COMMAND}"
    assert len(read(text, "tpu.allocation_mode=bare").warnings) == 1


def test_keys_are_dropped_only_if_the_allocator_is_overridden(read: Load) -> None:
    assert read(CLOUD, "tpu.zone=b").sections["tpu"].zone == "b"  # type: ignore[attr-defined]
    assert read(CLOUD, "tpu.allocation_mode=queued-resources").warnings == []


def test_the_files_allocator_may_not_be_installed(read: Load) -> None:
    loaded = read(CLOUD.replace("tpu-vm", "hosts"), "tpu.allocation_mode=bare")
    (warning,) = loaded.warnings
    assert "tpu.zone, tpu.tags" in warning.message
    assert "no plugin 'hosts' is installed" in warning.message
    assert warning.hint == "pip install tpux-plugin-ssh"


@pytest.mark.parametrize(
    ("tpu", "fits"),
    [
        (None, True),
        ({}, True),
        ({"zone": "a"}, True),  # the fixture's `local` has zones
        ({"zoen": "a"}, False),
        ({"allocation_mode": "tpu-vm", "zone": "a", "labels": {"a": "b"}}, True),
        ({"allocation_mode": "tpu-vm", "rack": "r1"}, False),
        ({"allocation_mode": "bare", "zone": "a"}, False),
        ({"allocation_mode": "bare", "accelerator": "v4-8"}, True),
        ({"allocation_mode": "rack", "rack": "r1"}, True),
        ({"allocation_mode": "rack"}, False),
        ({"allocation_mode": "hosts", "anything": 1}, True),
        ({"allocation_mode": "hosts", "pricing": "spto"}, False),
        ({"allocation_mode": 5}, False),
    ],
)
def test_the_schema_depends_on_the_allocator(plugins: Plugins, rack: Rack, tpu: object, fits: bool) -> None:
    made = json.loads(json.dumps(schema(plugins)))
    jsonschema.Draft202012Validator.check_schema(made)
    assert jsonschema.Draft202012Validator(made).is_valid({"command": {"cmd": "x"}, "tpu": tpu}) is fits
    assert made["properties"]["tpu"]["description"] == "The machines."


def test_a_broken_allocator_leaves_the_schema_of_the_others(plugins: Plugins, rack: Rack) -> None:
    rack.model = dict
    made = json.loads(json.dumps(schema(plugins)))
    valid = jsonschema.Draft202012Validator(made).is_valid
    assert valid({"command": {"cmd": "x"}, "tpu": {"allocation_mode": "rack", "anything": 1}})
    assert not valid({"command": {"cmd": "x"}, "tpu": {"allocation_mode": "bare", "anything": 1}})


def test_overriding_the_allocator_of_an_invalid_config(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "c.yaml").write_text(f"tpu: [a]{COMMAND}")
    with pytest.raises(ConfigError, match="tpu"):
        config.load(tmp_path / "c.yaml", ["tpu.allocation_mode=bare"], plugins=plugins)
    with pytest.raises(TpuxError):
        config.load(tmp_path / "c.yaml", ["tpu.allocation_mode=[a]"], plugins=plugins)
