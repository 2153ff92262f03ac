"""What tpux relies on, and a whole job, on this machine, with the uv that is installed here."""

from __future__ import annotations

import pytest

from tpux_testing import environment_contract, hooks_contract, module_contract, run_job, section_contract

SECTION = {"options": ["--no-project", "--offline"]}
STAND_IN = "#!/bin/sh\nmkdir -p ~/.local/bin; printf '#!/bin/sh\\n' > ~/.local/bin/uv; chmod +x ~/.local/bin/uv\n"


def test_contracts() -> None:
    """The hooks and the keys; output, exit code, variables, arguments and signals pass through."""
    hooks_contract("uv-run")
    section_contract("uv-run", SECTION)
    environment_contract("uv-run", SECTION)


def test_a_worker_without_uv(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed by pip, here by a stand-in for it."""
    (tmp_path / "python3").write_text(STAND_IN)
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    module_contract("uv-run", SECTION)


def test_a_job() -> None:
    """A job runs its program within uv."""
    run = run_job({"job": {"env_type": "uv-run"}, "uv-run": SECTION, "command": {"cmd": "basename ${UV:-none}"}})
    assert run.state == "succeeded", run.why
    assert run.output[0] == "uv\n"
