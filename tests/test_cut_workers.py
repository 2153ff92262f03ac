"""A worker of an emulated TPU VM loses its network in the middle of a set-up step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_gcp_e2e import cloud as cloud
from tests.test_repair_of_tpu_vms import tpux, until
from tpux.store import Store
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["cloud", "tpu_emulator"]
NODE = "cut-000001"
CONFIG = """
job: {{name: cut}}
tpu: {{allocation_mode: tpu-vm, accelerator: v4-16, zone: us-central2-b, project: emulated, endpoint: '{url}'}}
ssh: {{port: {port}}}
script: setup.sh
command: cat ran
"""
SCRIPT = "echo begin | tee -a ran; until [ -e ~/go ]; do sleep 0.1; done; echo end | tee -a ran\n"


@pytest.mark.system
@pytest.mark.timeout(400)
def test_a_worker_that_is_cut_off_delays_no_other_and_its_step_runs_once(cloud: Emulator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CONFIG.format(url=cloud.url, port=cloud.ssh_port))
    (tmp_path / "setup.sh").write_text(SCRIPT)
    tpux("create", str(tmp_path / "job.yaml"))
    record = Store().record("000001")

    def has_written(line: str, worker: int) -> bool:
        log = record.logs / f"script_worker_{worker}.log"
        return log.exists() and f"\n{line}\n" in log.read_text()

    until(lambda: has_written("begin", 0) and has_written("begin", 1))
    cloud.cut(NODE, 1, how="refuse")
    tpux("exec", "1", "--host", "--worker", "0", "touch go")
    until(lambda: has_written("end", 0))
    until(lambda: "worker 1" in record.refresh().why)
    assert record.refresh().state == "setting-up"
    assert not has_written("end", 1)
    cloud.restore(NODE, 1)
    tpux("exec", "1", "--host", "--worker", "1", "touch go")
    tpux("wait", "1")
    for worker in (0, 1):
        assert record.output_log(1, worker).read_text() == "begin\nend\n"
    assert [each.method for each in cloud.requests].count("nodes.create") == 1
