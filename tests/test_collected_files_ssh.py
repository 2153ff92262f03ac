"""`command.collect` over SSH, from the workers of an emulated TPU VM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_gcp_e2e import cloud as cloud
from tests.test_repair_of_tpu_vms import tpux
from tpux.store import Store
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["cloud", "tpu_emulator"]
CONFIG = """
job: {{name: cut}}
tpu: {{allocation_mode: tpu-vm, accelerator: v4-16, zone: us-central2-b, project: emulated, endpoint: '{url}'}}
ssh: {{port: {port}}}
command:
  cmd: |
    mkdir out; echo 1 >'out/a b'; echo 2 >'out/-n'; echo 3 >"out/$(printf 'new\\nline')"; : >"out/it's"
    head -c 5000000 /dev/zero >big
  collect: [out, big]
"""


@pytest.mark.system
@pytest.mark.timeout(400)
def test_files_are_fetched_over_ssh(cloud: Emulator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CONFIG.format(url=cloud.url, port=cloud.ssh_port))
    tpux("create", str(tmp_path / "job.yaml"))
    tpux("wait", "1")
    top = Store().record("000001").collected(1)
    names = {"out/a b": b"1\n", "out/-n": b"2\n", "out/new\nline": b"3\n", "out/it's": b"", "big": bytes(5_000_000)}
    found = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    assert found == {f"worker-{index}/{name}": content for index in (0, 1) for name, content in names.items()}
