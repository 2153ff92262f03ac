"""The plugin keeps the contracts of a module."""

from __future__ import annotations

from tpux_testing import hooks_contract, module_contract, section_contract


def test_hooks_and_section(tmp_path):
    script = tmp_path / "setup.sh"
    script.write_text("true\n")
    hooks_contract("script")
    section_contract("script", example={"path": str(script)})


def test_module(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPT_TOKEN", "canary-4711")
    script = tmp_path / "set up.sh"
    script.write_text('echo "$1 ${#TOKEN}" >"$TARGET"\n')
    variables = {"TARGET": "out put", "TOKEN": "${env:SCRIPT_TOKEN}"}
    own = ".tpux/script/*-w0"  # not needed: the machine has a mark too
    config = {"path": str(script), "args": ["a 'b' $c"], "env": variables}
    module_contract("script", config, ignore=[own, f"{own}/*"])
