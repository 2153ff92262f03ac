"""`tpux show` prints the user with whom tpux logs in, whoever has found it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpux import Job, JsonValue, MachineStatus, Released, TpuSection, Waiting, hookimpl
from tpux import config as configs
from tpux.lifecycle.open import draft_job
from tpux.plugin.manager import Plugins
from tpux.store import Store


class CloudSection(TpuSection):
    transport = "ssh"


class Cloud:
    """An allocator whose machines want another user than this one."""

    @hookimpl
    def tpu_section(self) -> type[TpuSection]:
        return CloudSection

    @hookimpl
    def resolve(self, job: Job) -> dict[str, JsonValue]:
        return {"login_user": "ann_lee"}

    @hookimpl
    def provision(self) -> Waiting:
        return Waiting("never")

    @hookimpl
    def inspect(self) -> MachineStatus:
        return MachineStatus("gone")

    @hookimpl
    def release(self) -> Released:
        return Released()


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("tpu: {allocation_mode: cloud}", "ann_lee"),
        ("tpu: {allocation_mode: cloud}\njob: {remote_user: bob}", "bob"),
        ("tpu: {allocation_mode: hosts}\nhosts: [10.0.0.1]", "me"),
    ],
)
def test_the_user_that_is_shown_logs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, user: str) -> None:
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    plugins = Plugins()
    plugins.add("cloud", Cloud())
    (tmp_path / "job.yaml").write_text(f"{text}\ncommand: 'true'\n")
    job = draft_job(Store(), configs.load(tmp_path / "job.yaml", plugins=plugins), plugins)
    answer = job.resolved["ssh"]
    assert {name: answer[name] for name in answer["shown"]} == {"login_user": user}
