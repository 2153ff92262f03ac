"""A job with local workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import tpux_local
from tpux import Allocation, Job, MachineStatus, ProvisionRequest, Ready, Released, Waiting
from tpux_local.host import LocalHost
from tpux_local.processes import processes_of, send
from tpux_local.section import LocalSection, LocalTpuSection


@dataclass
class Local:
    """Calls the allocator as core does, for one job."""

    directory: Path
    tpu: LocalTpuSection = field(default_factory=LocalTpuSection)
    section: LocalSection | None = None

    @property
    def request(self) -> ProvisionRequest:
        machines = self.directory / "machines"
        machines.mkdir(exist_ok=True)
        return ProvisionRequest("train-000001", self.tpu, self.section, {}, (), machines, attempt=1)

    @property
    def job(self) -> Job:
        resolved = {"local": tpux_local.resolve()}
        return Job("000001", "me", "ab12", self.directory, {"tpu": self.tpu}, resolved=resolved)

    def provision(self) -> Allocation:
        answer = tpux_local.provision(self.request)
        assert isinstance(answer, Ready)
        return answer.allocation

    def hosts(self) -> list[LocalHost]:
        return [LocalHost(worker, tpux_local.resolve()) for worker in self.provision().workers]

    def inspect(self, attempt: int = 1) -> MachineStatus:
        return tpux_local.inspect(replace(self.request, attempt=attempt))

    def release(self) -> Released | Waiting:
        return tpux_local.release(self.request)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    yield Local(tmp_path)
    homes = [
        path for generation in (1, 2, 3) for path in (tmp_path / f"machines/{generation}/worker-{i}" for i in range(4))
    ]
    while left := [pid for pid in processes_of(homes) if pid != os.getpid()]:
        send(left, signal.SIGKILL)
