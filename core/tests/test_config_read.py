"""Reading YAML and applying overrides: each error has its line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpux.config import load
from tpux.errors import ConfigError
from tpux.model.sections import CommandSection, TpuSection
from tpux.plugin.manager import Plugins

Problems = Callable[..., list[str]]
Load = Callable[..., object]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "c.yaml:1:1", "the config is empty"),
        ("# nothing\n", "c.yaml:1:1", "the config is empty"),
        ("- a\n", "c.yaml:1:1", "a config must be a mapping of sections"),
        ("hello", "c.yaml:1:1", "a config must be a mapping of sections"),
        ("command:\n\tcmd: x\n", "c.yaml:2:1", "YAML cannot be indented with tabs"),
        ("command:\n  cmd: |\n\techo\n", "c.yaml:3:1", "YAML cannot be indented with tabs"),
        ("job:\n  name: a\n  name: b\ncommand: {cmd: x}\n", "c.yaml:3:3", "duplicate key 'name', first at c.yaml:2:3"),
        ("command: {cmd: x}\ncommand: {cmd: y}\n", "c.yaml:2:1", "duplicate key 'command'"),
        ("job:\n  name: a: b\n", "c.yaml:2:10", "invalid YAML"),
        ("command: {cmd: x\n", "c.yaml:2:1", "invalid YAML"),
        ("command: {cmd: *x}\n", "c.yaml:1:16", "undefined alias"),
        ("command: {cmd: @x}\n", "c.yaml:1:16", "invalid YAML"),
        ("command: {cmd: x}\n---\njob: {}\n", "c.yaml:2:1", "another document"),
        ("command: {cmd: x}\njob: {name: !python x}\n", "c.yaml:2:13", "unknown tag !python"),
        ("command: {cmd: x}\njob: !!set {a}\n", "c.yaml:2:6", "unknown tag"),
        ("command: {cmd: x}\ntpu: {node_count: !!int x}\n", "c.yaml:2:19", "'x' is not a valid int"),
        ("command: {cmd: x}\n1: {}\n", "c.yaml:2:1", "a key must be a string"),
        ("command: {cmd: x}\n[a]: {}\n", "c.yaml:2:1", "a key must be a string"),
        ("command: {cmd: x}\n<<: 3\n", "c.yaml:2:5", "<< expects a mapping"),
        ("command: {cmd: a\x01b}\n", "c.yaml:1:17", "U+0001 is not allowed"),
        ("command: {cmd: x}\njob: &a\n  name: *a\n", "c.yaml:1:1", "contains itself"),
        ("[" * 2000, "c.yaml:1:1", "nested too deeply"),
    ],
)
def test_invalid_yaml(problems: Problems, text: str, place: str, message: str) -> None:
    (first, *_) = problems(text.encode())
    assert first.startswith(f"{place}: ")
    assert message in first


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"command:\n  cmd: caf\xe9\n", "c.yaml:2:11"),
        ("command:\n  # über\n  cmd: ü".encode() + b"\xff", "c.yaml:3:9"),
        ("command: {cmd: x}".encode("utf-16"), "c.yaml:1:1"),
    ],
)
def test_other_encodings(problems: Problems, content: bytes, place: str) -> None:
    (only,) = problems(content)
    assert only.startswith(f"{place}: not valid UTF-8")


def test_a_byte_order_mark_and_crlf_are_accepted(problems: Problems, read: Load) -> None:
    read(b"\xef\xbb\xbfcommand: {cmd: x}")
    (only,) = problems(b"\xef\xbb\xbfcommand:\r\n  cmd: x\r\n  cdm: x\r\n")
    assert only.startswith("c.yaml:3:3: ")


def test_unreadable_files(tmp_path: Path, plugins: Plugins) -> None:
    for path, message in [(tmp_path / "no.yaml", "file not found"), (tmp_path, "is a directory")]:
        with pytest.raises(ConfigError, match=message) as caught:
            load(path, plugins=plugins)
        assert caught.value.problems[0].where == str(path)


def test_anchors_and_merges(read: Load) -> None:
    loaded = read("""
        tpu: &base
          accelerator: v4-16
          zone: a
        watch: {}
        command:
          cmd: echo
        setup: {<<: [{tries: 2}, {tries: 7}]}
        """)
    assert loaded.sections["setup"].tries == 2  # type: ignore[attr-defined]


def test_timestamps_are_strings_and_yaml_1_1_booleans_are_booleans(read: Load) -> None:
    loaded = read("job: {name: 2024-01-01, loop: yes}\ncommand: {cmd: x}\ntpu: {labels: {on: off}}")
    job = loaded.sections["job"]  # type: ignore[attr-defined]
    assert (job.name, job.loop) == ("2024-01-01", True)


def test_overrides(read: Load) -> None:
    loaded = read(
        "command: {cmd: x}\njob: {max_restarts: {infra: 1}}",
        "tpu.accelerator=v4-32",
        "command.workers=[0,1]",
        "command.workers[1]=3",
        "command.cmd=A=1 run --b=2",
        "job.name=x-${tpu.accelerator}",
        "job.max_restarts.infra=4",
        "docker.=null",
    )
    command, tpu = loaded.sections["command"], loaded.sections["tpu"]  # type: ignore[attr-defined]
    assert isinstance(command, CommandSection)
    assert isinstance(tpu, TpuSection)
    assert (command.workers, command.cmd) == ([0, 3], "A=1 run --b=2")
    assert loaded.sections["job"].name == "x-v4-32"  # type: ignore[attr-defined]
    assert loaded.sections["job"].max_restarts == {"infra": 4}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("tpu.zone", "expected section.key=value or key=value"),
        ("=1", "expected section.key=value"),
        (".a=1", "expected section.key=value"),
        ("tpu..zone=1", "expected section.key=value"),
        ("tpuu.zone=a", "unknown section 'tpuu' | did you mean 'tpu'?"),
        ("command.workers=[0", "invalid YAML"),
        ("command.cmd.x=1", "cannot set 'x'"),
        ("tpu.accelerator.5=v4-8", "the list has 1 items"),
        ("tpu.zonee=a", "unknown key 'tpu.zonee' | did you mean 'zone'?"),
        ("job.name=5", "must be a string"),
        ("job.=5", "job must be a mapping"),
        ("command.cmd=echo a: b", "must be a string | the value is parsed as YAML: put quotes inside the argument"),
        ("tpu.name=${tpu.nme}", "unknown variable ${tpu.nme}"),
        ("command.workers=9", "no worker 9"),
        ("job.rule=resum", "rule 'resum'"),
    ],
)
def test_invalid_overrides(problems: Problems, argument: str, message: str) -> None:
    (only,) = problems("command: {cmd: x}\ntpu: {accelerator: [v4-8]}", argument)
    assert only.startswith(f"argument {argument!r}: ")
    assert message in only
