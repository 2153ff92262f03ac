from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import tpux_local
from tpux import HostUnreachableError, Released, TpuSection, TpuxError, Waiting
from tpux_local import allocator
from tpux_local.host import LocalHost
from tpux_local.processes import processes_of
from tpux_local.section import LocalSection

if TYPE_CHECKING:
    from conftest import Local

BACKGROUND = "setsid sleep 100 </dev/null >/dev/null 2>&1 &"
DEAF = f"trap '' TERM; {BACKGROUND}"


@pytest.mark.parametrize(
    ("accelerator", "nodes", "workers"),
    [(None, 1, 1), ("v4-32", 1, 4), ("v5litepod-8", 1, 1), ("v6e-16", 3, 12), (["v4-16", "v4-8"], 1, 2)],
)
def test_as_many_workers_as_the_accelerator_has(
    local: Local, accelerator: str | list[str] | None, nodes: int, workers: int
) -> None:
    local.tpu = TpuSection(accelerator=accelerator, node_count=nodes)
    allocation = local.provision()
    assert [worker.index for worker in allocation.workers] == list(range(workers))
    assert [worker.slice for worker in allocation.workers] == [i * nodes // workers for i in range(workers)]
    assert (allocation.slices, allocation.transport, allocation.costs) == (nodes, "local", False)
    assert allocation.storage == str(local.directory / "output")
    for host in local.hosts():
        assert host.home.stat().st_mode & 0o777 == 0o700
        assert host.home.is_relative_to(local.directory / "machines/1")


def test_provision_is_idempotent(local: Local) -> None:
    first = local.provision()
    LocalHost(first.workers[0]).put(b"", "kept")
    assert local.provision() == first
    assert LocalHost(first.workers[0]).read(("kept", 0)) == [b""]
    assert local.inspect().condition == "ready"


def test_before_there_are_any(local: Local) -> None:
    assert local.inspect().condition == "gone"
    assert local.release() == Released()


def release_all(local: Local) -> None:
    deadline = time.monotonic() + 10
    while isinstance(local.release(), Waiting):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("script", ["true", BACKGROUND, DEAF])
def test_release_ends_processes_and_keeps_files(local: Local, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "KILL_GRACE", 0.1)
    [host] = local.hosts()
    host.run(script)
    host.put(b"", "kept")
    release_all(local)
    assert processes_of([host.home]) == []
    assert local.release() == Released()
    assert (host.home / "kept").exists()
    assert local.inspect().condition == "gone"
    [other] = local.hosts()
    assert other.home == local.directory / "machines/2/worker-0"


def test_other_jobs_processes_are_left_alone(local: Local) -> None:
    local.tpu = TpuSection(accelerator="v4-16")
    first, second = local.hosts()
    first.run(BACKGROUND)
    second.run(BACKGROUND)
    assert len(processes_of([first.home])) == len(processes_of([second.home])) == 1


def test_a_process_that_is_always_in_an_exec_is_found(local: Local) -> None:
    """Its environment is empty for a moment each time: it must not pass for gone."""
    [host] = local.hosts()
    host.run("echo 'exec sh loop' > loop; setsid sh loop </dev/null >/dev/null 2>&1 &")
    assert {len(processes_of([host.home])) for _ in range(100)} == {1}


def test_a_preemption_takes_processes_and_disks(local: Local) -> None:
    local.section = LocalSection(preempt_after=0)
    local.tpu = TpuSection(accelerator="v4-16")
    hosts = local.hosts()
    for host in hosts:
        host.run(DEAF)
    assert local.inspect(attempt=0).condition == "ready", "it counts from the command's start"
    machines = local.inspect()
    assert (machines.condition, "preempt_after" in machines.evidence) == ("preempted", True)
    assert processes_of([host.home for host in hosts]) == []
    assert [path.name for path in (local.directory / "machines").iterdir()] == ["machines.json"]
    with pytest.raises(HostUnreachableError):
        hosts[0].run("true")
    assert local.inspect().condition == "preempted"
    assert local.release() == Released()
    assert local.release() == Released()
    assert [host.home.parent.name for host in local.hosts()] == ["2", "2"]
    assert local.inspect().condition == "ready"


def test_a_preemption_that_was_broken_off_goes_on(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after=0)
    [host] = local.hosts()
    host.run(BACKGROUND)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(allocator, "send", killed)
        with pytest.raises(KeyboardInterrupt):
            local.inspect()
    assert processes_of([host.home])
    assert local.release() == Released()
    assert processes_of([host.home]) == []


def test_processes_that_do_not_end_are_not_preempted_yet(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after=0)
    local.provision()
    monkeypatch.setattr(allocator, "processes_of", lambda _: [0])
    monkeypatch.setattr(allocator, "send", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert local.inspect().condition == "unknown"
    assert isinstance(local.release(), Waiting)


def test_the_first_attempt_alone_is_preempted(local: Local) -> None:
    local.section = LocalSection(preempt_after=0)
    local.provision()
    assert local.inspect(attempt=0).condition == "ready"
    assert local.inspect(attempt=2).condition == "ready"
    assert local.inspect(attempt=1).condition == "preempted"


def test_a_second_look_does_not_move_the_deadline(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after="4s")
    local.provision()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert local.inspect().condition == "ready"
    monkeypatch.setattr(time, "time", lambda: now + 3)
    assert local.inspect().condition == "ready"
    assert local.inspect().look_again_after <= 1
    monkeypatch.setattr(time, "time", lambda: now + 4)
    assert local.inspect().condition == "preempted"


def test_homes_that_somebody_deleted(local: Local) -> None:
    [host] = local.hosts()
    host.home.parent.rename(local.directory / "elsewhere")
    assert local.inspect().condition == "gone"


def test_a_record_that_is_none(local: Local) -> None:
    local.provision()
    (local.directory / "machines/machines.json").write_text('{"generation": 1')
    with pytest.raises(TpuxError, match="no record of machines") as error:
        local.inspect()
    assert error.value.where.endswith("machines.json")


def test_preflight(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tpux_local.preflight(local.job) == []
    local.tpu = TpuSection(accelerator="v4-7")
    [finding] = tpux_local.preflight(local.job)
    assert (finding.level, finding.where) == ("error", "tpu.accelerator")
    local.tpu = TpuSection()
    monkeypatch.setenv("PATH", "")
    [finding] = tpux_local.preflight(local.job)
    assert finding.message == "this machine has no sh and no flock and no setsid"
