"""TPUs that no job created: commands reach them by their name, and jobs take turns in using them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.test_gcp_e2e import cloud as cloud
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["cloud", "tpu_emulator"]
TPUX = Path(sys.executable).with_name("tpux")


@pytest.fixture
def tpux(cloud: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that runs `tpux` in a shell with the emulator's endpoint, and gives stdout and stderr."""
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", cloud.url)

    def run(*words: object, code: int | None = 0) -> str:
        done = subprocess.run(
            [TPUX, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    yield run
    run("supervisor", "stop")


@pytest.mark.system
def test_a_tpu_made_by_hand_is_reached_by_its_name_and_borrowed_in_turns(
    tpux: Callable[..., str], cloud: Emulator, tmp_path: Path
) -> None:
    if cloud.ssh_port != 22:
        pytest.skip("the workers' SSH servers have another port, which only a job's config can name")
    tpux("tpu", "create", "mine", "--type", "v4-16", "--zone", "us-central2-b")
    assert tpux("exec", "mine", "--worker", "0-1", "echo", "worker of", "$TPUX_RUN_HOME").count("worker of") == 2
    assert "[1] t1v-" in tpux("exec", "mine", "hostname")
    assert "t1v-" in tpux("ssh", "mine", "--worker", "1", "--", "hostname")
    assert "worker 0  libtpu  " in tpux("solve", "mine", "--worker", "0")
    assert "ok      mine, 2 worker(s), zone us-central2-b\n" in tpux("diagnose", "mine", "--worker", "1", code=None)
    blocks = tpux("ssh-config", "mine")
    assert "Host tpux-mine-0\n" in blocks
    (tmp_path / "ssh_config").write_text(blocks)
    ssh = ["ssh", "-F", str(tmp_path / "ssh_config"), "tpux-mine-1", "echo", "reached"]
    assert subprocess.run(ssh, capture_output=True, text=True, check=True, timeout=60).stdout == "reached\n"
    assert "mine has no worker 7" in tpux("ssh", "mine", "--worker", "7", code=2)
    assert "there is no job yours, and no TPU of that name" in tpux("exec", "yours", "true", code=2)

    config = (
        "tpu: {allocation_mode: tpu-vm, accelerator: v4-16, zone: us-central2-b, name: mine}\ncommand: {cmd: CMD}\n"
    )
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id_lab"], check=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").touch()
    modules = f"ssh: {{between_workers: true, identities: [{{private_key: {tmp_path}/id_lab}}]}}\ncode: project\n"
    (tmp_path / "first.yaml").write_text(
        modules + config.replace("CMD", "'echo > result; until [ -e ~/go ]; do sleep 0.2; done'")
    )
    (tmp_path / "second.yaml").write_text(config.replace("CMD", "echo second"))
    tpux("create", "first.yaml")
    _until(lambda: "running" in tpux("list"))
    tpux("create", "second.yaml")
    _until(lambda: "in use by job 1; `tpux stop 1 --release` frees it" in tpux("show", "2"))
    assert "job 1, which is running, holds mine: --force would end its program" in tpux(
        "solve", "mine", "--force", code=2
    )
    left = "find .ssh .tpux/code/jobs -type f; cat .ssh/authorized_keys .ssh/config"
    assert all(name in tpux("exec", "1", "--host", left) for name in ("id_lab", "tpux_between_workers", "train.py"))
    tpux("exec", "1", "--host", "touch", "go")
    tpux("wait", "1", "2")
    assert "second" in tpux("logs", "2")
    assert "READY" in tpux("tpu", "status", "mine", "--zone", "us-central2-b"), "a borrowed TPU is kept"
    found = tpux("exec", "mine", left, code=None)
    assert not [name for name in ("id_lab", "tpux_between", "train.py") if name in found], found
    assert found.count("/result\n") == 2, "what the program has written stays"
    tpux("tpu", "delete", "mine", "--zone", "us-central2-b", "-y")


def _until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.system
def test_tpux_tpu_finds_the_running_emulator_of_this_user(
    tpux: Callable[..., str], cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", "http://127.0.0.1:9")
    assert (
        "tpux: error: nothing listens at http://127.0.0.1:9 (tpu.endpoint): tpux emulator start --detach\n"
    ) in tpux("tpu", "list", code=1)
    monkeypatch.delenv("TPUX_GCP_ENDPOINT")
    monkeypatch.setenv("TPUX_EMULATOR_HOME", str(cloud.home.path))
    said = tpux("tpu", "create", "found", "--type", "v4-8")
    assert f"using the emulator at {cloud.url}; for Google's API: export TPUX_GCP_ENDPOINT=https://" in said
    assert "node found is READY" in tpux("tpu", "status", "found")
    blocks = tpux("ssh-config", "found")
    assert blocks.count("using the emulator at") == 1
    assert "Host tpux-found-0\n" in blocks
    if cloud.ssh_port == 22:
        assert "[0] t1v-" in tpux("exec", "found", "hostname")
    assert "there is no job yours, and no TPU of that name" in tpux("exec", "yours", "true", code=2)
    tpux("tpu", "delete", "found", "-y")
    monkeypatch.setenv("TPUX_EMULATOR_HOME", str(cloud.home.path / "none"))
    nowhere = tpux("exec", "found", "true", code=2)
    assert "there is no job found (no TPU of that name was looked for: no Google Cloud project in" in nowhere
    assert "or tpux emulator start --detach" in nowhere
