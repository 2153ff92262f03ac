"""The plugin keeps the contracts of a module and of an environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tpux_testing import environment_contract, hooks_contract, module_contract, section_contract


def test_hooks_and_section():
    hooks_contract("venv")
    section_contract("venv")


def test_module(bench, uv, local_host, monkeypatch):
    """Each worker has the Python and pip of `bench`, and one wheel in place of a package index."""

    def new_host():
        host = local_host(**bench.env)
        for wheel in bench.wheels.iterdir():
            host.put(wheel, f"wheels/{wheel.name}")
        return host

    monkeypatch.setenv("INDEX_TOKEN", "canary-4711")
    index = "https://ann:${env:INDEX_TOKEN}@index.invalid/simple"  # not asked: the requirements say --no-index
    config = {"name": "env", "requirements_file": bench.requirements, "find_links": "wheels", "index_url": index}
    module_contract("venv", config, new_host=new_host)


def test_environment(bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{bench.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
    environment_contract("venv", {"name": "env"})


def test_the_command_runs_both_contracts(bench, tmp_path):
    config = tmp_path / "job.yaml"
    config.write_text("job: {env_type: venv}\nvenv: {name: env}\ncommand: {cmd: 'true'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tpux", "plugins", "check", "venv", "--config", str(config)],
        env={**os.environ, "PATH": bench.env["PATH"]},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "ok: module_contract\nok: environment_contract\n" in done.stdout
