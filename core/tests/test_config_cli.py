"""The commands `tpux config check`, `show` and `schema`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tpux.config.yaml import write
from tpux.model.sections import CORE_SECTIONS
from tpux.plugin.manager import Plugins
from tpux_testing.schema import schema

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FAKE = """
    from tpux import Section, TpuSection, hookimpl
    class HereSection(TpuSection):
        def count_workers(self):
            return 2
    class MailSection(Section):
        '''Mails at the end.'''
        api_key: str
        '''The key.'''
    @hookimpl
    def config_section():
        return MailSection
    @hookimpl
    def run(command): ...
    class Here:
        @hookimpl
        def provision(self, request): ...
        @hookimpl
        def tpu_section(self):
            return HereSection
    here = Here()
"""


@pytest.fixture
def tpux(tmp_path: Path, install: Callable[..., Path]) -> Run:
    site = install("tpux-here", FAKE, entries="here = tpux_here:here\nmails = tpux_here")

    def run(*args: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tpux.cli.main", "config", *args]
        env = {**os.environ, "PYTHONPATH": str(site), **environ}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        return done

    (tmp_path / "c.yaml").write_text(
        "# a comment\ntpu: {allocation_mode: here, accelerator: v4-16}\nmails: {api_key: '${env:KEY}'}\n"
        "command:\n  cmd: |\n    echo ${HOME}\n    exit 0\n"
    )
    return run


def test_check_prints_a_summary(tpux: Run) -> None:
    done = tpux("check", "c.yaml", "job.env_type=mails", KEY="hunter22")
    assert done.stdout.splitlines() == [
        "ok  file: c.yaml",
        "ok  workers: 2, by here",
        "ok  modules: mails",
        "ok  environment: mails",
    ]
    assert done.stderr == ""
    assert json.loads(tpux("check", "c.yaml", "--json", KEY="x").stdout) == {
        "ok": True,
        "file": "c.yaml",
        "allocator": "here",
        "workers": 2,
        "modules": [],
        "environment": None,
        "warnings": [],
    }


def test_check_prints_the_errors(tpux: Run) -> None:
    done = tpux("check", "c.yaml", "job.env_type=mails", "command.workers=7", code=2)
    assert done.stdout == ""
    assert "argument 'command.workers=7': no worker 7" in done.stderr
    assert "c.yaml:3:19: environment variable KEY is not set\n  hint: export KEY=..." in done.stderr
    answer = json.loads(tpux("check", "c.yaml", "job.env_type=mails", "--json", code=2).stdout)
    assert answer == {
        "ok": False,
        "file": "c.yaml",
        "problems": [
            {"where": "c.yaml:3:19", "message": "environment variable KEY is not set", "hint": "export KEY=..."}
        ],
    }


def test_warnings_go_to_stderr(tpux: Run) -> None:
    done = tpux("check", "c.yaml", "command.cmd=echo ${tpu.acelerator}", KEY="k")
    assert done.stdout.startswith("ok  file: c.yaml\n")
    assert "unknown variable" in done.stderr
    assert "did you mean ${tpu.accelerator}?" in done.stderr


def test_show_masks_secrets(tpux: Run) -> None:
    done = tpux("show", "c.yaml", "tpu.name=n-${tpu.accelerator}", KEY="hunter22")
    assert YAML(typ="safe").load(done.stdout) == {
        "job": {"name": "c"},
        "tpu": {"allocation_mode": "here", "accelerator": "v4-16", "name": "n-v4-16"},
        "mails": {"api_key": "********"},
        "command": {"cmd": "echo ${HOME}\nexit 0\n"},
    }
    assert "  cmd: |\n    echo ${HOME}\n    exit 0\n" in done.stdout
    shown = json.loads(tpux("show", "c.yaml", "--json", KEY="hunter22").stdout)
    assert shown["mails"] == {"api_key": "********"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cn"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc-1", min_size=1), inner),
)


@given(st.dictionaries(st.sampled_from("abc"), JSON))
def test_written_yaml_reads_back_as_the_same_data(data: dict[str, object]) -> None:
    stream = StringIO()
    write(data, stream)  # type: ignore[arg-type]
    assert YAML(typ="safe", pure=True).load(stream.getvalue()) == data


@pytest.mark.system
def test_the_schema_has_all_installed_plugins(tpux: Run) -> None:
    made = json.loads(tpux("schema").stdout)
    assert made["additionalProperties"] is False
    assert made["required"] == ["command"]
    assert {*CORE_SECTIONS, "here", "mails", "docker", "wandb"} <= set(made["properties"])
    mail = made["$defs"]["MailSection"]
    assert mail["properties"]["api_key"]["description"] == "The key."
    assert made["properties"]["mails"]["description"] == "Mails at the end."
    without = json.loads(json.dumps(schema(Plugins({}))))
    assert "pip install tpux-plugin-notify" in without["properties"]["brevo_email"]["description"]


def test_every_key_of_core_has_a_description_in_the_schema() -> None:
    made = json.loads(json.dumps(schema(Plugins({}))))
    for word, model in CORE_SECTIONS.items():
        name = "OtherTpuSection" if word == "tpu" else model.__name__
        properties = made["$defs"][name]["properties"]
        assert properties
        for key, content in properties.items():
            assert content.get("description"), f"{word}.{key}"


def test_the_schema_has_both_aliases_of_a_key() -> None:
    made = json.loads(json.dumps(schema(Plugins({}))))
    command = made["$defs"]["CommandSection"]
    assert command["properties"]["run"] == command["properties"]["cmd"]
    assert "required" not in command or "cmd" not in command["required"]
    assert {"anyOf": [{"required": ["cmd"]}, {"required": ["run"]}]} in command["allOf"]
